#include "kernels/cuda/launch.cuh"
#include "kernels/sampling/op_cuda.h"
#include "kernels/sampling/pick.cuh"
#include "kernels/sampling/row_sampler.cuh"

namespace fastfd::kernels::cuda {
namespace {

/// Whether `adjust` would change a row.
__device__ bool has_adjustments(const SlotSampling& slot, const layout::LaneSample& sample) {
  return slot.counts_row >= 0 || slot.num_biases > 0 ||
         (sample.num_generated < slot.min_tokens && slot.num_stop_tokens > 0);
}

/// Logits that a thread asks for before it looks at the first.
constexpr std::uint32_t kLogitBatch = 8;

/// As on the CPU, to the last bit. `times`: an entry of token_counts that is not 0.
__device__ float penalised(float logit, std::uint32_t times, const SlotSampling& slot) {
  if (slot.repetition_penalty != 1.0F) {
    logit = logit > 0.0F ? __fdiv_rn(logit, slot.repetition_penalty)
                         : __fmul_rn(logit, slot.repetition_penalty);
  }
  const std::uint32_t count = times & ~kInPrompt;
  if (count == 0) {
    return logit;
  }
  const float penalty = __fadd_rn(slot.presence_penalty,
                                  __fmul_rn(slot.frequency_penalty, static_cast<float>(count)));
  return __fsub_rn(logit, penalty);
}

/// A copy of the row with penalties, logit_bias and the ban of stop tokens, in this order.
__device__ void adjust(const SamplingParams& params, const SlotSampling& slot,
                       const layout::LaneSample& sample, const float* logits, float* adjusted) {
  const auto vocab_size = static_cast<std::uint32_t>(params.vocab_size);
  const std::uint32_t* counts =
      slot.counts_row < 0 ? nullptr : params.token_counts + slot.counts_row * params.vocab_size;
  for (std::uint32_t first = threadIdx.x; first < vocab_size;
       first += kSamplingThreads * kLogitBatch) {
    float values[kLogitBatch];
    std::uint32_t times[kLogitBatch];
#pragma unroll
    for (std::uint32_t i = 0; i < kLogitBatch; ++i) {
      const std::uint32_t token = first + i * kSamplingThreads;
      values[i] = token < vocab_size ? logits[token] : 0.0F;
      times[i] = token < vocab_size && counts != nullptr ? counts[token] : 0;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kLogitBatch; ++i) {
      const std::uint32_t token = first + i * kSamplingThreads;
      if (token < vocab_size) {
        adjusted[token] = times[i] == 0 ? values[i] : penalised(values[i], times[i], slot);
      }
    }
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < slot.num_biases; i += kSamplingThreads) {
    const LogitBias entry = params.logit_biases[slot.first_bias + i];
    if (entry.token >= 0 && entry.token < params.vocab_size) {
      adjusted[entry.token] = __fadd_rn(adjusted[entry.token], entry.bias);
    }
  }
  __syncthreads();
  if (sample.num_generated < slot.min_tokens) {
    for (std::uint32_t i = threadIdx.x; i < slot.num_stop_tokens; i += kSamplingThreads) {
      const TokenId token = params.stop_tokens[slot.first_stop_token + i];
      if (token >= 0 && token < params.vocab_size) {
        adjusted[token] = -__builtin_inff();
      }
    }
  }
  __syncthreads();
}

/// One block a sample.
__global__ void __launch_bounds__(kSamplingThreads) sampling_kernel(SamplingParams params) {
  __shared__ SamplingShared shared;
  const std::int64_t index = blockIdx.x;
  if (index >= params.control->num_samples ||
      __syncthreads_or(static_cast<int>(params.abort->aborted)) != 0) {
    return;
  }
  const layout::LaneSample sample = params.samples[index];
  const SlotSampling slot = params.slots[sample.slot];
  const float* logits = params.logits + index * params.vocab_size;
  SampledRow& result = params.results[index];

  RowSampler sampler(logits, static_cast<std::uint32_t>(params.vocab_size), shared);
  RowMaximum maximum = sampler.find_maximum();
  bool is_valid = maximum.is_valid;
  double log_total = 0.0;
  std::uint32_t num_top = 0;
  if (is_valid && slot.num_logprobs >= 0) {
    log_total = sampler.log_total(maximum.logit);
    if (slot.num_logprobs > 0) {
      num_top = sampler.find_top(static_cast<std::uint32_t>(slot.num_logprobs), maximum);
    }
    if (threadIdx.x < num_top) {
      const auto token = static_cast<TokenId>(~static_cast<std::uint32_t>(shared.top[threadIdx.x]));
      result.top[threadIdx.x] = {token, static_cast<float>(logits[token] - log_total)};
    }
  }
  if (is_valid && has_adjustments(slot, sample)) {
    float* adjusted = params.adjusted + index * params.vocab_size;
    adjust(params, slot, sample, logits, adjusted);
    sampler.set_row(adjusted);
    maximum = sampler.find_maximum();
    is_valid = maximum.is_valid;
  }
  TokenId token = kNoToken;
  if (is_valid) {
    token = slot.temperature == 0.0F ? maximum.token : sampler.draw(slot, sample.position, maximum);
  }
  if (threadIdx.x == 0) {
    result.token = token;
    result.num_top = num_top;
    result.logprob = is_valid && slot.num_logprobs >= 0
                         ? static_cast<float>(static_cast<double>(logits[token]) - log_total)
                         : 0.0F;
    params.last_tokens[sample.slot] = token;
    if (is_valid && slot.counts_row >= 0) {
      ++params.token_counts[slot.counts_row * params.vocab_size + token];
    }
  }
}

constexpr int kCountThreads = 512;

/// One block a row of counts.
__global__ void __launch_bounds__(kCountThreads) set_token_counts_kernel(TokenCountsParams params) {
  const TokenHistory history = params.histories[blockIdx.x];
  if (history.counts_row < 0) {
    return;
  }
  std::uint32_t* counts = params.token_counts + history.counts_row * params.vocab_size;
  for (std::int64_t i = threadIdx.x; i < params.vocab_size; i += kCountThreads) {
    counts[i] = 0;
  }
  __syncthreads();
  const std::uint32_t num_tokens = history.num_prompt_tokens + history.num_output_tokens;
  for (std::uint32_t i = threadIdx.x; i < num_tokens; i += kCountThreads) {
    const TokenId token = params.tokens[history.first_token + i];
    if (token < 0 || token >= params.vocab_size) {
      continue;
    }
    if (i < history.num_prompt_tokens) {
      atomicOr(counts + token, kInPrompt);
    } else {
      atomicAdd(counts + token, 1U);
    }
  }
}

}  // namespace

Status launch_sampling(const SamplingParams& params, device::CudaStream stream) {
  if (params.vocab_size < 1 || params.max_samples < 0) {
    return {StatusCode::kInvalidArgument, "sampling: needs a vocabulary"};
  }
  return launch(
      sampling_kernel,
      {.grid = dim3(static_cast<unsigned>(params.max_samples)), .block = dim3(kSamplingThreads)},
      stream, "sampling", params);
}

Status launch_set_token_counts(const TokenCountsParams& params, device::CudaStream stream) {
  if (params.vocab_size < 1 || params.num_histories < 0) {
    return {StatusCode::kInvalidArgument, "token counts: needs a vocabulary"};
  }
  return launch(
      set_token_counts_kernel,
      {.grid = dim3(static_cast<unsigned>(params.num_histories)), .block = dim3(kCountThreads)},
      stream, "set_token_counts", params);
}

}  // namespace fastfd::kernels::cuda
