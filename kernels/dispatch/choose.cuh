#pragma once

/// Top-k of one row by one warp.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/dispatch/op_cuda.h"

namespace fastfd::kernels::cuda::choose {

/// One lane's share of a row's routes: lane k has the k-th.
struct Route {
  std::uint32_t expert;
  float weight;
};

inline constexpr std::uint32_t kTaken = 0;  ///< rank of an expert that is taken or not there

/// Orders scores as unsigned numbers; NaN is below every number but can be chosen.
__device__ inline std::uint32_t rank_of(float score) {
  if (isnan(score)) {
    return kTaken + 1;
  }
  const std::uint32_t bits = __float_as_uint(score + 0.0F);  // -0 ties with 0
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}

/// Replaces logits by scores.
__device__ inline void score(const RouterParams& router, float* logits) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (router.scoring == RouterScoring::kSigmoid) {
    for (std::uint32_t e = lane; e < router.num_experts; e += 32) {
      logits[e] = 1.0F / (1.0F + expf(-logits[e]));
    }
    __syncwarp();
    return;
  }
  float largest = -INFINITY;
  for (std::uint32_t e = lane; e < router.num_experts; e += 32) {
    largest = fmaxf(largest, logits[e]);
  }
  largest = reduce_warp(largest, [](float a, float b) { return fmaxf(a, b); });
  float total = 0.0F;
  for (std::uint32_t e = lane; e < router.num_experts; e += 32) {
    logits[e] = expf(logits[e] - largest);
    total += logits[e];
  }
  total = reduce_warp(total, Sum{});
  for (std::uint32_t e = lane; e < router.num_experts; e += 32) {
    logits[e] /= total;
  }
  __syncwarp();
}

/// What chooses an expert.
__device__ inline float choice_of(const RouterParams& router, const float* scores,
                                  std::uint32_t expert) {
  return scores[expert] +
         (router.correction_bias != nullptr ? __ldg(router.correction_bias + expert) : 0.0F);
}

/// A bit for each of the top_groups best groups, of equal ones the lower. Lane g looks after group
/// g, beginning at another of its experts than the others, so that they hit different banks.
__device__ inline std::uint32_t best_groups(const RouterParams& router, const float* scores) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t size = router.num_experts / router.num_groups;
  std::uint32_t rank = kTaken;
  if (lane < router.num_groups) {
    float best = -INFINITY;
    float second = -INFINITY;
    std::uint32_t at = lane % size;
    for (std::uint32_t i = 0; i < size; ++i) {
      const float choice = choice_of(router, scores, lane * size + at);
      second = fmaxf(second, fminf(best, choice));
      best = fmaxf(best, choice);
      at = at + 1 == size ? 0 : at + 1;
    }
    const bool both = router.group_score == GroupScore::kTopTwoSum && size > 1;
    rank = rank_of(both ? best + second : best);
  }
  std::uint32_t num_better = 0;
  for (std::uint32_t group = 0; group < router.num_groups; ++group) {
    const std::uint32_t other = __shfl_sync(kAllLanes, rank, static_cast<int>(group));
    num_better += other > rank || (other == rank && group < lane) ? 1 : 0;
  }
  return __ballot_sync(kAllLanes, lane < router.num_groups && num_better < router.top_groups);
}

/// The top_k of up to 32 * kExpertsPerLane scores in shared memory.
template <std::uint32_t kExpertsPerLane>
__device__ Route take_best(const RouterParams& router, const float* scores) {
  const std::uint32_t lane = threadIdx.x % 32;
  const bool has_groups = router.top_groups < router.num_groups;
  const std::uint32_t groups = has_groups ? best_groups(router, scores) : 0;
  const std::uint32_t group_size = has_groups ? router.num_experts / router.num_groups : 1;
  std::uint32_t ranks[kExpertsPerLane];
#pragma unroll
  for (std::uint32_t i = 0; i < kExpertsPerLane; ++i) {
    const std::uint32_t expert = i * 32 + lane;
    ranks[i] = kTaken;
    if (expert < router.num_experts &&
        (!has_groups || (groups >> (expert / group_size) & 1U) != 0)) {
      ranks[i] = rank_of(choice_of(router, scores, expert));
    }
  }

  Route mine{0, 0.0F};
  float kept = 0.0F;
  for (std::uint32_t k = 0; k < router.top_k; ++k) {
    std::uint32_t best = kTaken;
    std::uint32_t expert = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kExpertsPerLane; ++i) {
      if (ranks[i] > best) {  // not >=: the lower id stays
        best = ranks[i];
        expert = i * 32 + lane;
      }
    }
    const std::uint32_t highest = __reduce_max_sync(kAllLanes, best);
    const std::uint32_t chosen =
        __reduce_min_sync(kAllLanes, best == highest ? expert : 0xffffffffU);
    const float weight = scores[chosen];
    kept += weight;
    if (lane == k) {
      mine = {chosen, weight};
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kExpertsPerLane; ++i) {
      if (i * 32 + lane == chosen) {
        ranks[i] = kTaken;
      }
    }
  }
  if (router.renormalize) {
    mine.weight /= kept + 1e-20F;  // all scores of a row may be 0
  }
  mine.weight *= router.scaling_factor;
  return mine;
}

/// Called by a whole warp. `logits` [num_experts] in shared memory is overwritten.
__device__ inline Route choose_experts(const RouterParams& router, float* logits) {
  if (router.scoring == RouterScoring::kAll) {
    return {threadIdx.x % 32, 1.0F};
  }
  score(router, logits);
  if (router.num_experts <= 128) {
    return take_best<4>(router, logits);
  }
  return router.num_experts <= 256 ? take_best<8>(router, logits)
                                   : take_best<kMaxExperts / 32>(router, logits);
}

}  // namespace fastfd::kernels::cuda::choose
