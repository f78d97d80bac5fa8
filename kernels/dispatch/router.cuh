#pragma once

/// Router logits on the tensor cores, before normalisation: for a chunk of columns,
/// partial = sum over the chunk of (residual * norm weight) * router weight. The factor 1 / rms of
/// a row is applied by the kernel behind, which sums the chunks.
///
/// The left side is float: it is split into two bf16 terms (16 bits of mantissa, an error of
/// 2^-18 a value), so two products a term make a float dot product of it. A CTA holds its weights
/// in registers and takes tiles of 16 rows past them; every weight is read once a CTA.

#include "kernels/cuda/row_math.cuh"
#include "kernels/dispatch/op_cuda.h"

namespace fastfd::kernels::cuda {

inline constexpr std::uint32_t kRouterThreads = 512;
inline constexpr std::uint32_t kRouterRows = 16;      ///< a tile
inline constexpr std::uint32_t kRouterExperts = 64;   ///< a CTA: 4 warps side by side
inline constexpr std::uint32_t kRouterColumns = 512;  ///< a CTA: 4 warps deep
/// 64 bytes more than a multiple of 128, so that 8 lanes reading 16 bytes of two rows hit all
/// banks.
inline constexpr std::uint32_t kSplitStride = kRouterColumns + 32;

__host__ __device__ constexpr std::uint32_t num_router_chunks(std::uint32_t hidden_dim) {
  return (hidden_dim + kRouterColumns - 1) / kRouterColumns;
}

namespace router {

inline constexpr std::uint32_t kWarpExperts = 16;
inline constexpr std::uint32_t kExpertWarps = kRouterExperts / kWarpExperts;
inline constexpr std::uint32_t kDepth = 4;  ///< warps that share the columns
inline constexpr std::uint32_t kWarpColumns = kRouterColumns / kDepth;
inline constexpr std::uint32_t kBlockColumns = 32;  ///< 16 bytes of each of 4 lanes
inline constexpr std::uint32_t kBlocks = kWarpColumns / kBlockColumns;
inline constexpr std::uint32_t kRowHalves = kRouterRows / 8;  ///< the instruction takes 8 rows

/// What a thread holds of its warp's 16 experts x 128 columns. The order of columns inside a block
/// is permuted alike on both sides of the product, so that each thread reads 16 bytes in one piece.
struct Weights {
  uint4 low[kBlocks];   ///< expert lane / 4
  uint4 high[kBlocks];  ///< expert lane / 4 + 8
};

struct Shared {
  alignas(16) __nv_bfloat16 high[kRouterRows * kSplitStride];
  alignas(16) __nv_bfloat16 low[kRouterRows * kSplitStride];
  float4 sums[kDepth - 1][kExpertWarps][kRowHalves][32];
};

/// c += a (16 experts x 16 columns) * b (16 columns x 8 rows)
__device__ inline void multiply(float4& c, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void multiply_block(float4& c, const uint4& low_experts,
                                      const uint4& high_experts, const uint4& rows) {
  multiply(c, low_experts.x, high_experts.x, low_experts.y, high_experts.y, rows.x, rows.y);
  multiply(c, low_experts.z, high_experts.z, low_experts.w, high_experts.w, rows.z, rows.w);
}

__device__ inline Weights load_weights(const DispatchParams& params, std::uint32_t first_expert,
                                       std::uint32_t first_column) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t last = params.router.num_experts - 1;
  // Missing experts repeat the last one; their sums are not stored.
  const std::size_t low = min(first_expert + lane / 4, last);
  const std::size_t high = min(first_expert + lane / 4 + 8, last);
  Weights weights;
#pragma unroll
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const std::uint32_t column = first_column + block * kBlockColumns + lane % 4 * 8;
    weights.low[block] = weights.high[block] = {0, 0, 0, 0};
    if (column < params.hidden_dim) {
      const bf16* base = params.router.weights + column;
      weights.low[block] = __ldg(reinterpret_cast<const uint4*>(base + low * params.hidden_dim));
      weights.high[block] = __ldg(reinterpret_cast<const uint4*>(base + high * params.hidden_dim));
    }
  }
  return weights;
}

/// A thread's share of a tile: four columns of every fourth row.
struct TileLoader {
  static constexpr std::uint32_t kRowThreads4 = kRouterColumns / 4;
  static constexpr std::uint32_t kRowStep = kRouterThreads / kRowThreads4;
  static constexpr std::uint32_t kLoads = kRouterRows / kRowStep;

  const float* residual;
  std::uint32_t hidden_dim;
  std::uint32_t max_rows;  ///< rows behind the last are loaded as well: the bucket has them all
  std::uint32_t column;    ///< in the row
  std::uint32_t column_in_tile;
  float4 weight;
  float4 values[kLoads];

  __device__ TileLoader(const DispatchParams& params, std::uint32_t chunk)
      : residual(params.residual),
        hidden_dim(params.hidden_dim),
        max_rows(params.max_rows),
        column(chunk * kRouterColumns + threadIdx.x % kRowThreads4 * 4),
        column_in_tile(threadIdx.x % kRowThreads4 * 4),
        weight{0.0F, 0.0F, 0.0F, 0.0F} {
    if (column >= hidden_dim) {
      return;
    }
    if (params.norm.dtype == DType::kFloat32) {
      weight =
          *reinterpret_cast<const float4*>(static_cast<const float*>(params.norm.values) + column);
    } else {
      const uint2 packed =
          *reinterpret_cast<const uint2*>(static_cast<const bf16*>(params.norm.values) + column);
      weight = {__uint_as_float(packed.x << 16), __uint_as_float(packed.x & 0xffff0000U),
                __uint_as_float(packed.y << 16), __uint_as_float(packed.y & 0xffff0000U)};
    }
  }

  __device__ void load(std::uint32_t tile) {
#pragma unroll
    for (std::uint32_t i = 0; i < kLoads; ++i) {
      const std::uint32_t row = tile * kRouterRows + threadIdx.x / kRowThreads4 + i * kRowStep;
      values[i] = {0.0F, 0.0F, 0.0F, 0.0F};
      if (row < max_rows && column < hidden_dim) {
        values[i] = *reinterpret_cast<const float4*>(
            residual + static_cast<std::size_t>(row) * hidden_dim + column);
      }
    }
  }

  /// Scales by the norm's weight and splits.
  __device__ void store(Shared& shared) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kLoads; ++i) {
      const float x[4] = {values[i].x * weight.x, values[i].y * weight.y, values[i].z * weight.z,
                          values[i].w * weight.w};
      float rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        rest[j] = x[j] - __bfloat162float(__float2bfloat16_rn(x[j]));
      }
      const std::uint32_t at =
          (threadIdx.x / kRowThreads4 + i * kRowStep) * kSplitStride + column_in_tile;
      *reinterpret_cast<uint2*>(shared.high + at) = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
      *reinterpret_cast<uint2*>(shared.low + at) = {pack_bf16(rest[0], rest[1]),
                                                    pack_bf16(rest[2], rest[3])};
    }
  }
};

/// 16 experts x 8 rows over the warp's columns.
__device__ inline float4 multiply_tile(const Weights& weights, const Shared& shared,
                                       std::uint32_t row_half, std::uint32_t depth) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t base =
      (row_half * 8 + lane / 4) * kSplitStride + depth * kWarpColumns + lane % 4 * 8;
  float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const std::uint32_t at = base + block * kBlockColumns;
    multiply_block(sum, weights.low[block], weights.high[block],
                   *reinterpret_cast<const uint4*>(shared.low + at));
    multiply_block(sum, weights.low[block], weights.high[block],
                   *reinterpret_cast<const uint4*>(shared.high + at));
  }
  return sum;
}

}  // namespace router

/// Grid: (column chunks, expert tiles, row groups). Writes partial_logits [chunk, max_rows, expert]
/// of the rows there are.
__global__ void __launch_bounds__(kRouterThreads, 1) router_kernel(const DispatchParams params) {
  __shared__ router::Shared shared;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t expert_warp = warp % router::kExpertWarps;
  const std::uint32_t depth = warp / router::kExpertWarps;
  const std::uint32_t first_expert =
      blockIdx.y * kRouterExperts + expert_warp * router::kWarpExperts;
  const router::Weights weights = router::load_weights(
      params, first_expert, blockIdx.x * kRouterColumns + depth * router::kWarpColumns);
  cudaGridDependencySynchronize();            // weights don't change: they are on their way already
  cudaTriggerProgrammaticLaunchCompletion();  // after it, so that what is behind needs no wait
  router::TileLoader loader(params, blockIdx.x);
  loader.load(blockIdx.z);  // before it is known whether there is such a tile
  const std::uint32_t num_rows = min(params.control->num_rows, params.max_rows);
  const std::uint32_t num_tiles = (num_rows + kRouterRows - 1) / kRouterRows;

  float* partial = params.partial_logits + static_cast<std::size_t>(blockIdx.x) * params.max_rows *
                                               params.router.num_experts;
  const auto store = [&](std::uint32_t row, std::uint32_t expert, float value) {
    if (row < num_rows && expert < params.router.num_experts) {
      partial[static_cast<std::size_t>(row) * params.router.num_experts + expert] = value;
    }
  };
  for (std::uint32_t tile = blockIdx.z; tile < num_tiles; tile += gridDim.z) {
    loader.store(shared);
    __syncthreads();
    if (tile + gridDim.z < num_tiles) {
      loader.load(tile + gridDim.z);
    }
    const std::uint32_t halves = num_rows - tile * kRouterRows > 8 ? 2 : 1;
    float4 sums[router::kRowHalves];
#pragma unroll
    for (std::uint32_t half = 0; half < router::kRowHalves; ++half) {
      if (half < halves) {
        sums[half] = router::multiply_tile(weights, shared, half, depth);
        if (depth > 0) {
          shared.sums[depth - 1][expert_warp][half][lane] = sums[half];
        }
      }
    }
    __syncthreads();
    if (depth > 0) {
      continue;
    }
#pragma unroll
    for (std::uint32_t half = 0; half < router::kRowHalves; ++half) {
      if (half < halves) {
        float4 sum = sums[half];
        for (std::uint32_t i = 0; i < router::kDepth - 1; ++i) {
          const float4 more = shared.sums[i][expert_warp][half][lane];
          sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        const std::uint32_t row = tile * kRouterRows + half * 8 + lane % 4 * 2;
        const std::uint32_t expert = first_expert + lane / 4;
        store(row, expert, sum.x);
        store(row + 1, expert, sum.y);
        store(row, expert + 8, sum.z);
        store(row + 1, expert + 8, sum.w);
      }
    }
  }
}

}  // namespace fastfd::kernels::cuda
