#pragma once

#include <cstdint>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// Most alternatives reported with a token (SamplingParams::num_logprobs).
inline constexpr std::uint32_t kMaxTopLogprobs = 20;

struct LogitBias {
  TokenId token = kNoToken;
  float bias = 0.0F;
};

/// SamplingParams of a sequence as the sampler reads them; written when its slot is opened. Ids
/// outside the vocabulary are ignored.
struct alignas(16) SlotSampling {
  float temperature = 1.0F;
  float top_p = 1.0F;
  float min_p = 0.0F;
  std::int32_t top_k = 0;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::uint64_t seed = 0;
  std::uint32_t min_tokens = 0;
  std::int32_t num_logprobs = -1;  ///< at most kMaxTopLogprobs
  std::int32_t counts_row = -1;    ///< of token_counts; -1: no penalties
  std::uint32_t first_bias = 0;    ///< into logit_biases; a token occurs once in a slot's entries
  std::uint32_t num_biases = 0;
  std::uint32_t first_stop_token = 0;  ///< into stop_tokens
  std::uint32_t num_stop_tokens = 0;
};

struct RankedToken {
  TokenId token = kNoToken;
  float logprob = 0.0F;
};

/// The part of a slot's state that follows from the request alone; lists and counts_row are the
/// caller's.
inline SlotSampling slot_sampling(const fastfd::SamplingParams& params) {
  SlotSampling slot;
  slot.temperature = params.temperature;
  slot.top_p = params.top_p;
  slot.min_p = params.min_p;
  slot.top_k = params.top_k;
  slot.repetition_penalty = params.repetition_penalty;
  slot.presence_penalty = params.presence_penalty;
  slot.frequency_penalty = params.frequency_penalty;
  slot.seed = params.seed;
  slot.min_tokens = params.min_tokens;
  slot.num_logprobs = params.num_logprobs;
  slot.num_biases = static_cast<std::uint32_t>(params.logit_bias.size());
  slot.num_stop_tokens = static_cast<std::uint32_t>(params.stop_token_ids.size());
  return slot;
}

/// Of a token_counts entry: the prompt has the token. The rest is how often it was generated.
inline constexpr std::uint32_t kInPrompt = 1U << 31;

/// What the host reads back of one sample.
struct SampledRow {
  /// kNoToken: a logit was NaN or +infinity, or no token was left to choose.
  TokenId token = kNoToken;
  float logprob = 0.0F;              ///< of the raw distribution; 0 if num_logprobs is negative
  std::uint32_t num_top = 0;         ///< used entries of `top`
  RankedToken top[kMaxTopLogprobs];  ///< likeliest first
};

/// Chooses a token for every sample exactly as kernels/sampling/op.h says. Weights are summed as
/// integers, so neither the order of threads nor the way a set of tokens was found matters: the
/// CPU's token comes out unless the draw falls within rounding of a token's border.
struct SamplingParams {
  std::int64_t max_samples = 0;  ///< the bucket
  std::int64_t vocab_size = 0;
  const layout::LaneControl* control = nullptr;
  const layout::AbortState* abort = nullptr;
  const layout::LaneSample* samples = nullptr;  ///< [max_samples]
  const float* logits = nullptr;                ///< [max_samples, vocab_size], 16-byte aligned
  float* adjusted = nullptr;            ///< [max_samples, vocab_size], scratch, 16-byte aligned
  const SlotSampling* slots = nullptr;  ///< [num_slots]
  const LogitBias* logit_biases = nullptr;
  const TokenId* stop_tokens = nullptr;
  std::uint32_t* token_counts = nullptr;  ///< [rows, vocab_size]; the chosen token is counted
  TokenId* last_tokens = nullptr;         ///< [num_slots]; the chosen token, fed by the next step
  SampledRow* results = nullptr;          ///< [max_samples]
};
/// Writes nothing if the epoch is aborted. kInvalidArgument for an empty vocabulary.
Status launch_sampling(const SamplingParams& params, device::CudaStream stream);

/// Sets rows of token_counts to what lists of tokens say: when a slot with penalties is opened,
/// with the tokens of its prompt and those it generated before (PROTOCOL 4: state that can be
/// rebuilt).
struct TokenHistory {
  std::int32_t counts_row = -1;   ///< -1: nothing to do
  std::uint32_t first_token = 0;  ///< those of the prompt, then the generated ones
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_output_tokens = 0;
};
struct TokenCountsParams {
  std::int64_t num_histories = 0;
  std::int64_t vocab_size = 0;
  const TokenHistory* histories = nullptr;  ///< [num_histories], device memory, distinct rows
  const TokenId* tokens = nullptr;          ///< device memory
  std::uint32_t* token_counts = nullptr;    ///< [rows, vocab_size]
};
Status launch_set_token_counts(const TokenCountsParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
