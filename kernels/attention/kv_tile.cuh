#pragma once

/// Keys and values of a run of tokens in shared memory, and how the tensor cores get at them. A
/// token's row is cut into chunks of 16 bytes, whose order is permuted by the row's number so that
/// eight rows of one column lie in different banks.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/attention/mma.cuh"
#include "kernels/cuda/reduce.cuh"

namespace fastfd::kernels::cuda {

/// Byte offset of a chunk in a tile whose rows have kChunks of them.
template <int kChunks>
__device__ __forceinline__ std::uint32_t chunk_offset(int row, int chunk) {
  static_assert(kChunks >= 4);
  // Rows of 64 bytes: two share the banks of one row of 128.
  const int turn = kChunks >= 8 ? row & 7 : (row >> 1) & 3;
  return static_cast<std::uint32_t>((row * kChunks + (chunk ^ turn)) * 16);
}

/// A bf16 pool: products are bf16. Elements stay in the order of the head.
struct Bf16Kv {
  static constexpr int kElementBytes = 2;

  /// Queries of two rows for 16 dims from `dim` on, as the A operand; lanes of a quad share rows.
  static __device__ __forceinline__ void load_queries(std::uint32_t (&a)[4], const void* row0,
                                                      const void* row1, int dim, int quad_lane) {
    const int word = dim / 2 + quad_lane;
    a[0] = row0 != nullptr ? static_cast<const std::uint32_t*>(row0)[word] : 0;
    a[1] = row1 != nullptr ? static_cast<const std::uint32_t*>(row1)[word] : 0;
    a[2] = row0 != nullptr ? static_cast<const std::uint32_t*>(row0)[word + 4] : 0;
    a[3] = row1 != nullptr ? static_cast<const std::uint32_t*>(row1)[word + 4] : 0;
  }

  /// B operands for 16 tokens and 32 dims: [16 dims][8 tokens].
  template <int kChunks>
  static __device__ __forceinline__ void load_keys(std::uint32_t (&b)[2][2][2], std::uint32_t tile,
                                                   int token, int dim, int lane) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int matrix = lane / 8;
      std::uint32_t m[4];
      load_matrices(m, tile + chunk_offset<kChunks>(token + matrix / 2 * 8 + lane % 8,
                                                    dim / 8 + step * 2 + matrix % 2));
      b[step][0][0] = m[0];
      b[step][0][1] = m[1];
      b[step][1][0] = m[2];
      b[step][1][1] = m[3];
    }
  }

  /// B operands for 16 tokens and 32 dims: [8 dims].
  template <int kChunks>
  static __device__ __forceinline__ void load_values(std::uint32_t (&b)[4][2], std::uint32_t tile,
                                                     int token, int dim, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int matrix = lane / 8;
      std::uint32_t m[4];
      load_matrices_transposed(m, tile + chunk_offset<kChunks>(token + matrix % 2 * 8 + lane % 8,
                                                               dim / 8 + half * 2 + matrix / 2));
      b[2 * half][0] = m[0];
      b[2 * half][1] = m[1];
      b[2 * half + 1][0] = m[2];
      b[2 * half + 1][1] = m[3];
    }
  }

  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }

  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
    mma_bf16(c, a, b);
  }

  /// A lane's four sums of a row for 16 dims, two of each of two neighbouring B operands, are two
  /// pairs of neighbouring dims: where a pair begins, and which sums it is made of.
  static __device__ __forceinline__ int pair_dim(int pair, int quad_lane) {
    return pair * 8 + 2 * quad_lane;
  }
  static constexpr __device__ int pair_index(int pair, int element) { return 2 * pair + element; }
};

/// An e4m3 pool: every e4m3 number is an f16, so products are f16. A byte matrix seen as 16-bit
/// elements hands out neighbouring dims in pairs; queries are read, and sums written, to match.
struct Fp8Kv {
  static constexpr int kElementBytes = 1;

  static __device__ __forceinline__ std::uint32_t widen(std::uint32_t two_bytes) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
        static_cast<__nv_fp8x2_storage_t>(two_bytes & 0xffffU), __NV_E4M3);
    return static_cast<std::uint32_t>(pair.x) | (static_cast<std::uint32_t>(pair.y) << 16);
  }

  static __device__ __forceinline__ std::uint32_t to_f16(std::uint32_t bf16_pair) {
    constexpr float kLargest = 65504.0F;
    const float low = __uint_as_float(bf16_pair << 16);
    const float high = __uint_as_float(bf16_pair & 0xffff0000U);
    // A NaN stays one: it fails both comparisons.
    return pack(low > kLargest    ? kLargest
                : low < -kLargest ? -kLargest
                                  : low,
                high > kLargest    ? kLargest
                : high < -kLargest ? -kLargest
                                   : high);
  }

  static __device__ __forceinline__ void load_queries(std::uint32_t (&a)[4], const void* row0,
                                                      const void* row1, int dim, int quad_lane) {
    const int at = dim / 4 + quad_lane;
    const uint2 none = make_uint2(0, 0);
    const uint2 q0 = row0 != nullptr ? static_cast<const uint2*>(row0)[at] : none;
    const uint2 q1 = row1 != nullptr ? static_cast<const uint2*>(row1)[at] : none;
    a[0] = to_f16(q0.x);
    a[1] = to_f16(q1.x);
    a[2] = to_f16(q0.y);
    a[3] = to_f16(q1.y);
  }

  template <int kChunks>
  static __device__ __forceinline__ void load_keys(std::uint32_t (&b)[2][2][2], std::uint32_t tile,
                                                   int token, int dim, int lane) {
    const int matrix = lane / 8;
    std::uint32_t m[4];
    load_matrices(
        m, tile + chunk_offset<kChunks>(token + matrix / 2 * 8 + lane % 8, dim / 16 + matrix % 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i % 2][i / 2][0] = widen(m[i]);
      b[i % 2][i / 2][1] = widen(m[i] >> 16);
    }
  }

  template <int kChunks>
  static __device__ __forceinline__ void load_values(std::uint32_t (&b)[4][2], std::uint32_t tile,
                                                     int token, int dim, int lane) {
    const int matrix = lane / 8;
    std::uint32_t m[4];
    load_matrices_transposed(
        m, tile + chunk_offset<kChunks>(token + matrix % 2 * 8 + lane % 8, dim / 16 + matrix / 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Two dims of one token, and of the next: regrouped to two tokens of one dim.
      const std::uint32_t first = widen(m[i]);
      const std::uint32_t second = widen(m[i] >> 16);
      b[i / 2 * 2][i % 2] = __byte_perm(first, second, 0x5410);
      b[i / 2 * 2 + 1][i % 2] = __byte_perm(first, second, 0x7632);
    }
  }

  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }

  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
    mma_f16(c, a, b);
  }

  static __device__ __forceinline__ int pair_dim(int pair, int quad_lane) {
    return 4 * quad_lane + 2 * pair;
  }
  static constexpr __device__ int pair_index(int pair, int element) { return pair + 2 * element; }
};

}  // namespace fastfd::kernels::cuda
