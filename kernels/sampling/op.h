#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// How often each token was generated, 0 for those of the prompt alone; a token has one entry.
/// Grown on demand, only for rows with penalties.
using TokenCounts = std::vector<std::pair<TokenId, std::uint32_t>>;

/// One row to sample.
struct SamplingRow {
  const float* logits = nullptr;  ///< [vocab_size]
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;  ///< nullptr: none
  std::uint32_t position = 0;           ///< of the token being sampled, in the sequence
  std::uint32_t num_generated = 0;      ///< before this token (min_tokens)
};

struct SamplingOutput {
  TokenId token = kNoToken;
  /// Of the raw distribution: log_softmax(logits). 0 if num_logprobs is negative.
  float logprob = 0.0F;
  std::vector<TokenLogprob> top_logprobs;  ///< num_logprobs entries, descending
};

/// In this order: penalties (repetition first), logit_bias and the min_tokens ban; greedy (lowest
/// id wins ties) if temperature is 0; else temperature, top_k, min_p, top_p, and a draw by
/// Philox-4x32-10 (Salmon et al., SC'11) keyed by (seed, position): the kept tokens share [0, 1) in
/// ascending id, each as much as its probability. top_p counts from the likeliest token down, ties
/// by the lower id. Reported log-probabilities are those of the logits before any of it. A row
/// with a logit that is NaN or +infinity, or with no token left, gets kNoToken. Ids outside the
/// vocabulary in logit_bias, stop_token_ids and counts are ignored. A row's outcome
/// depends on that row only.
Status launch_sampling(std::span<const SamplingRow> rows, std::int64_t vocab_size,
                       std::span<SamplingOutput> outputs, const device::CpuStream& stream);
/// The same by sorting the whole vocabulary.
void reference_sampling(std::span<const SamplingRow> rows, std::int64_t vocab_size,
                        std::span<SamplingOutput> outputs);

/// One block of Philox-4x32 with 10 rounds: 128 random bits for (counter, key).
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key);

/// Uniform in [0, 1) for (seed, position), 24 bits: the sampler's only randomness.
float sampling_uniform(std::uint64_t seed, std::uint32_t position);

}  // namespace fastfd::kernels
