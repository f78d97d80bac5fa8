#pragma once

/// The last step of attention whose context was cut: splits become one row.

#include <algorithm>

#include "kernels/attention/attention_common.cuh"
#include "kernels/cuda/launch.cuh"

namespace fastfd::kernels::cuda {

inline constexpr int kMergeWarps = 4;

/// One warp a row, query head and 64 dims: merges the splits of its context in ascending order.
/// Also makes the counters ready for the next layer.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    merge_kernel(const __grid_constant__ AttentionArguments args, float value_scale) {
  constexpr int kSlices = kHeadDim / (2 * kWarpSize);
  cudaGridDependencySynchronize();
  if (args.abort->aborted != 0) {
    return;
  }
  AttentionCounters& counters = *args.work.counters;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    counters.next_split = 0;
    counters.next_tile = 0;
  }
  const int slice = static_cast<int>(blockIdx.y * kMergeWarps + threadIdx.x / kWarpSize);
  const int head = slice / kSlices;
  if (blockIdx.x >= counters.num_merge_items || head >= args.num_q_heads) {
    return;
  }
  const MergeItem item = args.work.merge_items[blockIdx.x];
  const int dim = (slice % kSlices * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize) * 2;
  const std::int64_t first = std::int64_t{item.first_row_split} * args.num_q_heads + head;
  const std::int64_t stride = std::int64_t{item.stride} * args.num_q_heads;
  const SoftmaxState* states = args.work.states + first;
  const float* sums = args.work.sums + first * kHeadDim + dim;
  SoftmaxState merged = states[0];
  float2 sum = *reinterpret_cast<const float2*>(sums);
  // Everything is asked for before it is needed: the chain of factors is short, the memory far.
  constexpr std::uint32_t kAhead = 8;
  for (std::uint32_t split = 1; split < item.num_splits; split += kAhead) {
    SoftmaxState state[kAhead];
    float2 part[kAhead];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t at = min(split + i, item.num_splits - 1);
      state[i] = states[at * stride];
      part[i] = *reinterpret_cast<const float2*>(sums + at * stride * kHeadDim);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (split + i < item.num_splits) {
        const MergeFactors factors = merge_split(merged, state[i]);
        sum.x = merge_value(sum.x, part[i].x, factors);
        sum.y = merge_value(sum.y, part[i].y, factors);
      }
    }
  }
  const float factor = __fmul_rn(__frcp_rn(merged.total), value_scale);
  bf16* out = args.out + (std::int64_t{item.row} * args.num_q_heads + head) * kHeadDim + dim;
  *reinterpret_cast<std::uint32_t*>(out) =
      Bf16Kv::pack(__fmul_rn(sum.x, factor), __fmul_rn(sum.y, factor));
}

inline Status launch_merge(void (*kernel)(AttentionArguments, float),
                           const AttentionArguments& arguments, const AttentionBucket& bucket,
                           float value_scale, cudaStream_t stream) {
  const std::int64_t num_slices = bucket.num_q_heads * bucket.head_dim / (2 * kWarpSize);
  const std::int64_t num_items = std::max<std::int64_t>(arguments.work.max_merge_items, 1);
  return launch(kernel,
                {.grid = dim3(static_cast<unsigned>(num_items),
                              static_cast<unsigned>((num_slices + kMergeWarps - 1) / kMergeWarps)),
                 .block = dim3(kMergeWarps * kWarpSize),
                 .overlaps_predecessor = true},
                stream, "paged_attention_merge", arguments, value_scale);
}

}  // namespace fastfd::kernels::cuda
