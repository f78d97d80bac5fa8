#pragma once

/// The draw: the kept tokens share the total of their weights in ascending id, and the one that the
/// drawn point falls on is chosen.

#include "kernels/sampling/row_sampler.cuh"

namespace fastfd::kernels::cuda {

__device__ inline TokenId RowSampler::pick(std::uint32_t uniform) {
  if (!in_list_) {
    return pick_from_row(uniform);
  }
  return shared_.list.size <= kSamplingThreads ? pick_from_short_list(uniform)
                                               : pick_from_list(uniform);
}

/// Each thread has a token and adds up the weights of lower ids.
__device__ inline TokenId RowSampler::pick_from_short_list(std::uint32_t uniform) {
  const TokenList& list = shared_.list;
  const bool has_token = threadIdx.x < list.size;
  const std::uint32_t token = has_token ? list.tokens[threadIdx.x] : 0;
  const bool is_kept = has_token && cut_.keeps(token, list.logits[threadIdx.x]);
  const std::uint64_t weight = is_kept ? weigh_(list.logits[threadIdx.x]) : 0;
  shared_.weights[threadIdx.x] = weight;
  // The sum's barriers are behind the weights.
  const std::uint64_t point = point_of(sum({weight, 0}).weight, uniform);
  std::uint64_t before = 0;
  for (std::uint32_t i = 0; is_kept && i < list.size; ++i) {
    before += list.tokens[i] < token ? shared_.weights[i] : 0;
  }
  if (is_kept && before <= point && point < before + weight) {
    shared_.chosen = static_cast<TokenId>(token);
  }
  __syncthreads();
  return shared_.chosen;
}

/// Bisects the id.
__device__ inline TokenId RowSampler::pick_from_list(std::uint32_t uniform) {
  const std::uint64_t point = point_of(mass_from(true, -__builtin_inff()).weight, uniform);
  std::uint32_t first = 0;
  std::uint32_t last = row_.vocab_size() - 1;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    Mass mass;
    for_each(true, [&](std::uint32_t token, float logit) {
      if (token <= middle && cut_.keeps(token, logit)) {
        mass.weight += weigh_(logit);
      }
    });
    if (sum(mass).weight > point) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return static_cast<TokenId>(first);
}

/// Warps add up consecutive stretches of ids; then the whole block walks the one with the point.
__device__ inline TokenId RowSampler::pick_from_row(std::uint32_t uniform) {
  const std::uint32_t vocab_size = row_.vocab_size();
  const std::uint32_t lane = threadIdx.x % kWarpSize;
  const auto kept_weight = [&](std::uint32_t token, float logit) -> std::uint64_t {
    return cut_.keeps(token, logit) ? weigh_(logit) : 0;
  };
  const std::uint32_t stretch = (vocab_size + kSamplingWarps - 1) / kSamplingWarps;
  const std::uint32_t warp_begin = min(threadIdx.x / kWarpSize * stretch, vocab_size);
  std::uint64_t weight = 0;
  row_.for_range<kWarpSize>(
      lane, warp_begin, min(warp_begin + stretch, vocab_size),
      [&](std::uint32_t token, float logit) { weight += kept_weight(token, logit); });
  weight = reduce_warp(weight, Sum{});
  if (lane == 0) {
    shared_.words[threadIdx.x / kWarpSize] = weight;
  }
  __syncthreads();
  std::uint64_t point = point_of(reduce_warp(shared_.words[lane], Sum{}), uniform);
  std::uint32_t warp = 0;
  while (warp + 1 < kSamplingWarps && shared_.words[warp] <= point) {
    point -= shared_.words[warp++];
  }
  __syncthreads();
  const std::uint32_t end = min((warp + 1) * stretch, vocab_size);
  const std::uint32_t share = (stretch + kSamplingThreads - 1) / kSamplingThreads;
  const std::uint32_t begin = min(warp * stretch + threadIdx.x * share, end);
  weight = 0;
  for (std::uint32_t token = begin; token < min(begin + share, end); ++token) {
    weight += kept_weight(token, row_[token]);
  }
  // Weights of the threads before this one.
  std::uint64_t before = weight;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const std::uint64_t other = __shfl_up_sync(kAllLanes, before, offset);
    before += lane >= static_cast<std::uint32_t>(offset) ? other : 0;
  }
  if (lane == kWarpSize - 1) {
    shared_.words[threadIdx.x / kWarpSize] = before;
  }
  __syncthreads();
  before -= weight;
  for (std::uint32_t i = 0; i < threadIdx.x / kWarpSize; ++i) {
    before += shared_.words[i];
  }
  if (before <= point && point < before + weight) {
    std::uint32_t token = begin;
    while ((before += kept_weight(token, row_[token])) <= point) {
      ++token;
    }
    shared_.chosen = static_cast<TokenId>(token);
  }
  __syncthreads();
  return shared_.chosen;
}

}  // namespace fastfd::kernels::cuda
