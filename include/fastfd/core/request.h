#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd {

using SteadyTime = std::chrono::steady_clock::time_point;

/// How one token is chosen. Everything here is known before the first step; the sampler on the
/// attention server needs nothing else but the tokens emitted so far.
struct SamplingParams {
  float temperature = 1.0F;  ///< 0 is greedy
  float top_p = 1.0F;        ///< (0, 1]
  std::int32_t top_k = 0;    ///< 0 is off
  float min_p = 0.0F;        ///< [0, 1); 0 is off
  /// Above 0; 1 is off. Divides positive logits and multiplies others, of all tokens of the prompt
  /// and of the output (Keskar et al., CTRL, 2019).
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;   ///< [-2, 2], over generated tokens
  float frequency_penalty = 0.0F;  ///< [-2, 2], over generated tokens
  std::uint64_t seed = 0;          ///< with the position it determines every draw
  std::uint32_t min_tokens = 0;    ///< no stop token is sampled before so many were generated
  /// Log-probabilities to report a position: -1 none, 0 the chosen token's, n also the n likeliest.
  std::int32_t num_logprobs = -1;
  std::vector<std::pair<TokenId, float>> logit_bias;
  /// End-of-sequence and user stop ids; min_tokens bans them.
  std::vector<TokenId> stop_token_ids;
  /// Stop ids do not end the sequence (benchmarks).
  bool ignore_eos = false;

  bool has_penalties() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

/// One sequence to generate, as the scheduler takes it.
struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  std::uint32_t max_tokens = 16;  ///< at least 1
  std::int32_t priority = 0;      ///< larger runs first
  std::string cache_salt;         ///< separates prefix-cache entries of tenants
  /// Another choice of that request (`n` > 1), submitted before: it waits until that one's prompt
  /// is computed and shares its pages. 0, or a request that is gone or has another prompt: alone.
  RequestId fork_of = 0;
  SteadyTime arrival{};
};

enum class FinishReason : std::uint8_t {
  kNone,    ///< not finished
  kStop,    ///< stop id or stop string
  kLength,  ///< max_tokens or the model's context is used up
  kAbort,   ///< client went away, or an administrator asked
  kError,   ///< the servers that held it were lost
};

/// "stop", "length", "abort", "error"; "" for kNone.
const char* to_string(FinishReason reason);

struct TokenLogprob {
  TokenId token = kNoToken;
  float logprob = 0.0F;  ///< natural logarithm, before temperature and filters
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// A committed token on its way to the client. Emitted in position order, once each.
struct TokenEvent {
  RequestId request = 0;
  TokenId token = kNoToken;  ///< kNoToken: only `finish` is news
  float logprob = 0.0F;      ///< valid if num_logprobs >= 0
  std::vector<TokenLogprob> top_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::uint32_t num_cached_tokens = 0;  ///< prompt tokens that need not be computed for this one
  std::string error;                    ///< why, when finish is kError
};

}  // namespace fastfd
