#pragma once

/// Sums and maxima over the threads of a warp or block. Every thread gets the result, and the order
/// of additions is fixed by the shape of the block.

#include <cuda_runtime.h>

namespace fastfd::kernels::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

template <typename T, typename Op>
__device__ T reduce_warp(T value, Op op) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

/// `shared` holds one T a warp; `identity` is what a missing warp counts as. Ends in a barrier, so
/// `shared` may be used again at once.
template <int kThreads, typename T, typename Op>
__device__ T reduce_block(T value, T identity, T* shared, Op op) {
  constexpr int kWarps = kThreads / kWarpSize;
  value = reduce_warp(value, op);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) {
    shared[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  value = reduce_warp(lane < kWarps ? shared[lane] : identity, op);
  __syncthreads();
  return value;
}

}  // namespace fastfd::kernels::cuda
