#pragma once

/// Random inputs made on the device: a function of (seed, index), so that large ones cost no time
/// and every run sees the same.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "fastfd/core/dtype.h"
#include "kernels/cuda/launch.cuh"

namespace fastfd::testing {

/// In (-1, 1), mean 0.
__host__ __device__ inline float random_value(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ULL + index;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<float>(static_cast<std::int64_t>(x >> 40) * 2 + 1 - (std::int64_t{1} << 24)) /
         static_cast<float>(1 << 24);
}

__device__ inline void store_value(float* to, float value) { *to = value; }
__device__ inline void store_value(bf16* to, float value) { *to = bf16::from_float(value); }

template <typename T>
__global__ void fill_random_kernel(T* values, std::size_t num_values, std::uint64_t seed,
                                   float scale, float offset) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_values;
       i += stride) {
    store_value(values + i, offset + scale * random_value(seed, i));
  }
}

/// values = offset + scale * (-1, 1), on the default stream.
template <typename T>
Status fill_random(T* values, std::size_t num_values, std::uint64_t seed, float scale = 1.0F,
                   float offset = 0.0F) {
  kernels::cuda::LaunchShape shape;
  shape.grid = dim3(num_values == 0 ? 0 : 1024);
  shape.block = dim3(256);
  return kernels::cuda::launch(fill_random_kernel<T>, shape, nullptr, "fill_random_kernel", values,
                               num_values, seed, scale, offset);
}

}  // namespace fastfd::testing
