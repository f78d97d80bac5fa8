#pragma once

/// A row of activations spread over the threads of one CTA, eight neighbouring values at a time:
/// what the fused kernels of the data plane have in common. Thread t holds the groups t, t +
/// kRowThreads, ... of its row, so a sum over a row has the same order in every kernel.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "kernels/cuda/norm_weight.h"
#include "kernels/cuda/reduce.cuh"

namespace fastfd::kernels::cuda {

inline constexpr std::uint32_t kRowThreads = 256;
inline constexpr std::uint32_t kGroupValues = 8;
inline constexpr std::uint32_t kMaxGroups = 4;  ///< a thread
/// Largest row that its CTA's threads can hold.
inline constexpr std::uint32_t kMaxHiddenDim = kRowThreads * kGroupValues * kMaxGroups;

struct Group {
  float values[kGroupValues];
};

__device__ inline Group unpack_bf16(const uint4& packed) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  Group group;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    group.values[2 * i] = __uint_as_float(words[i] << 16);
    group.values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
  return group;
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline uint4 pack_bf16(const Group& group) {
  const float* v = group.values;
  return {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
          pack_bf16(v[6], v[7])};
}

/// `source` is aligned to the group.
__device__ inline Group load_group(const float* source) {
  const float4 low = *reinterpret_cast<const float4*>(source);
  const float4 high = *reinterpret_cast<const float4*>(source + 4);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ inline Group load_group(const bf16* source) {
  return unpack_bf16(*reinterpret_cast<const uint4*>(source));
}

__device__ inline Group load_group(const void* row, DType dtype, std::uint32_t column) {
  return dtype == DType::kFloat32 ? load_group(static_cast<const float*>(row) + column)
                                  : load_group(static_cast<const bf16*>(row) + column);
}

__device__ inline void store_group(float* target, const Group& group) {
  const float* v = group.values;
  *reinterpret_cast<float4*>(target) = {v[0], v[1], v[2], v[3]};
  *reinterpret_cast<float4*>(target + 4) = {v[4], v[5], v[6], v[7]};
}

__device__ inline void store_group(bf16* target, const Group& group) {
  *reinterpret_cast<uint4*>(target) = pack_bf16(group);
}

/// First column of this thread's group `index`; the group exists if it is less than the row's
/// length.
__device__ inline std::uint32_t group_column(std::uint32_t index) {
  return (threadIdx.x + index * kRowThreads) * kGroupValues;
}

__device__ inline float sum_of_squares(const Group& group) {
  float sum = 0.0F;
#pragma unroll
  for (std::uint32_t i = 0; i < kGroupValues; ++i) {
    sum = __fmaf_rn(group.values[i], group.values[i], sum);
  }
  return sum;
}

/// 1 / sqrt(mean + eps) of a row of `hidden_dim` values whose squares sum to the total over the
/// CTA's threads. All kRowThreads threads call it; `shared` holds one float a warp.
__device__ inline float inverse_rms(float thread_sum, std::uint32_t hidden_dim, float eps,
                                    float* shared) {
  const float total = reduce_block<kRowThreads>(thread_sum, 0.0F, shared, Sum{});
  return 1.0F / sqrtf(total / static_cast<float>(hidden_dim) + eps);
}

/// x * inverse * weight
__device__ inline Group normalize(const Group& x, float inverse, const NormWeight& norm,
                                  std::uint32_t column) {
  const Group weight = load_group(norm.values, norm.dtype, column);
  Group normed;
#pragma unroll
  for (std::uint32_t i = 0; i < kGroupValues; ++i) {
    normed.values[i] = x.values[i] * inverse * weight.values[i];
  }
  return normed;
}

}  // namespace fastfd::kernels::cuda
