#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rope/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kWarps = 4;
// With many rows, a warp has several heads, so that more loads are under way; with few rows, warps
// are better spread.
constexpr int kManyHeads = 4;
constexpr std::int64_t kManyRows = 256;

/// Two neighbouring elements of a head.
__device__ void store_pair(bf16* out, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(out) = __floats2bfloat162_rn(a, b);
}

/// `inverse_scale` of a bf16 pool is 1 and not looked at.
__device__ void store_kv_pair(void* pool, DType dtype, std::int64_t element, float a, float b,
                              float inverse_scale) {
  if (dtype == DType::kBFloat16) {
    store_pair(static_cast<bf16*>(pool) + element, a, b);
    return;
  }
  const auto pair = __nv_cvt_float2_to_fp8x2(make_float2(a * inverse_scale, b * inverse_scale),
                                             __NV_SATFINITE, __NV_E4M3);
  *reinterpret_cast<__nv_fp8x2_storage_t*>(static_cast<std::uint8_t*>(pool) + element) = pair;
}

/// First element of the key or value row of `entry` in the pool.
__device__ std::int64_t pool_element(const PagedKv& kv, const layout::LaneRow& entry, int kv_head) {
  const int shift = __ffsll(kv.page_size) - 1;
  const std::int64_t page =
      kv.page_tables[entry.slot * kv.pages_per_slot + (entry.position >> shift)];
  const std::int64_t offset = entry.position & (kv.page_size - 1);
  return ((page * kv.num_kv_heads + kv_head) * kv.page_size + offset) * kv.head_dim;
}

/// How an element of a head is rotated: x * cos + x[partner] * sin.
struct Rotation {
  int partner;
  float cos;
  float sin;
};

__device__ Rotation rotation_of(const RopeKvWriteParams& params, std::int64_t position, int i) {
  const int half = static_cast<int>(params.rotary_dim / 2);
  if (i >= 2 * half) {
    return {i, 1.0F, 0.0F};
  }
  const bool is_first = i < half;
  const std::int64_t angle = position * half + (is_first ? i : i - half);
  const float sin = params.sin[angle];
  return {is_first ? i + half : i - half, params.cos[angle], is_first ? -sin : sin};
}

constexpr int kRmsThreads = 256;

/// One block a row and projection: what QkNorm::kWhole multiplies by, without the weight.
__global__ void __launch_bounds__(kRmsThreads) whole_rms_kernel(RopeKvWriteParams params) {
  __shared__ float sums[kRmsThreads / kWarpSize];
  const std::int64_t row = blockIdx.x;
  if (row >= params.control->num_rows) {
    return;
  }
  const bool is_key = blockIdx.y == 1;
  const std::int64_t num_heads = params.num_q_heads + 2 * params.kv.num_kv_heads;
  const std::int64_t first_head = is_key ? params.num_q_heads : 0;
  const auto* x = reinterpret_cast<const __nv_bfloat162*>(
      params.qkv + (row * num_heads + first_head) * params.kv.head_dim);
  const std::int64_t dim =
      (is_key ? params.kv.num_kv_heads : params.num_q_heads) * params.kv.head_dim;
  float sum = 0.0F;
  for (std::int64_t i = threadIdx.x; i < dim / 2; i += kRmsThreads) {
    const float2 pair = __bfloat1622float2(x[i]);
    sum += pair.x * pair.x + pair.y * pair.y;
  }
  sum = reduce_block<kRmsThreads>(sum, 0.0F, sums, Sum{});
  if (threadIdx.x == 0) {
    params.inverse_rms[2 * row + blockIdx.y] =
        1.0F / sqrtf(sum / static_cast<float>(dim) + params.eps);
  }
}

/// One warp a row and a few heads, in the order of the projection: queries, keys, values.
template <int kHeadDim, int kHeadsPerWarp>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    rope_kv_write_kernel(RopeKvWriteParams params) {
  constexpr int kPairs = kHeadDim / (2 * kWarpSize);  // of neighbouring elements, a lane
  __shared__ float shared[kWarps][kHeadDim];
  const std::int64_t row = blockIdx.x;
  if (row >= params.control->num_rows || params.abort->aborted != 0) {
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_q = static_cast<int>(params.num_q_heads);
  const int num_kv = static_cast<int>(params.kv.num_kv_heads);
  const int num_heads = num_q + 2 * num_kv;
  const int first_head = (static_cast<int>(blockIdx.y) * kWarps + warp) * kHeadsPerWarp;
  const layout::LaneRow entry = params.rows[row];
  const bf16* in = params.qkv + (row * num_heads + first_head) * kHeadDim;

  // All loads before the first use.
  __nv_bfloat162 loaded[kHeadsPerWarp][kPairs];
#pragma unroll
  for (int h = 0; h < kHeadsPerWarp; ++h) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      loaded[h][j] =
          first_head + h < num_heads
              ? reinterpret_cast<const __nv_bfloat162*>(in + h * kHeadDim)[lane + j * kWarpSize]
              : __nv_bfloat162{};
    }
  }
  Rotation rotations[kPairs][2];
  const std::int64_t position =
      min(static_cast<std::int64_t>(entry.position), params.max_positions - 1);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    rotations[j][0] = rotation_of(params, position, 2 * (lane + j * kWarpSize));
    rotations[j][1] = rotation_of(params, position, 2 * (lane + j * kWarpSize) + 1);
  }
  float* x = shared[warp];
#pragma unroll
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    const int head = first_head + h;
    if (head >= num_heads) {
      return;
    }
    const bool is_query = head < num_q;
    const bool is_value = head >= num_q + num_kv;
    float2 values[kPairs];
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      values[j] = __bfloat1622float2(loaded[h][j]);
      sum += values[j].x * values[j].x + values[j].y * values[j].y;
    }
    if (!is_value && params.norm != QkNorm::kNone) {
      const float* weight = is_query ? params.q_norm_weight : params.k_norm_weight;
      float inverse = 0.0F;
      if (params.norm == QkNorm::kWhole) {
        weight += (is_query ? head : head - num_q) * kHeadDim;
        inverse = params.inverse_rms[2 * row + (is_query ? 0 : 1)];
      } else {
        sum = reduce_warp(sum, Sum{});
        inverse = 1.0F / sqrtf(sum / kHeadDim + params.eps);
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float2 w = reinterpret_cast<const float2*>(weight)[lane + j * kWarpSize];
        values[j].x = values[j].x * inverse * w.x;
        values[j].y = values[j].y * inverse * w.y;
      }
    }
    if (!is_value) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        reinterpret_cast<float2*>(x)[lane + j * kWarpSize] = values[j];
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const Rotation& a = rotations[j][0];
        const Rotation& b = rotations[j][1];
        values[j].x = values[j].x * a.cos + x[a.partner] * a.sin;
        values[j].y = values[j].y * b.cos + x[b.partner] * b.sin;
      }
      __syncwarp();
    }
    const std::int64_t element =
        is_query ? 0 : pool_element(params.kv, entry, (head - num_q) % num_kv);
    const float scale = is_value ? params.kv.value_scale : params.kv.key_scale;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = 2 * (lane + j * kWarpSize);
      if (is_query) {
        store_pair(params.q + (row * num_q + head) * kHeadDim + i, values[j].x, values[j].y);
      } else {
        store_kv_pair(is_value ? params.kv.values : params.kv.keys, params.kv.dtype, element + i,
                      values[j].x, values[j].y, 1.0F / scale);
      }
    }
  }
}

template <int kHeadDim>
auto kernel_of(int heads_per_warp) {
  return heads_per_warp == 1 ? rope_kv_write_kernel<kHeadDim, 1>
                             : rope_kv_write_kernel<kHeadDim, kManyHeads>;
}

}  // namespace

Status launch_rope_kv_write(const RopeKvWriteParams& params, device::CudaStream stream) {
  if (!is_supported(params.kv) || params.num_q_heads < 1 || params.max_rows < 0 ||
      params.max_positions < 1 || params.rotary_dim < 0 || params.rotary_dim % 2 != 0 ||
      params.rotary_dim > params.kv.head_dim) {
    return {StatusCode::kInvalidArgument,
            "rope: no kernel for heads of " + std::to_string(params.kv.head_dim) +
                " with a rotary_dim of " + std::to_string(params.rotary_dim) + ", pages of " +
                std::to_string(params.kv.page_size) + ", " + to_string(params.kv.dtype)};
  }
  if (params.norm != QkNorm::kNone &&
      (params.q_norm_weight == nullptr || params.k_norm_weight == nullptr ||
       (params.norm == QkNorm::kWhole && params.inverse_rms == nullptr))) {
    return {StatusCode::kInvalidArgument,
            "rope: a norm of q and k needs weights for both, one over whole projections scratch"};
  }
  if (params.norm == QkNorm::kWhole) {
    const LaunchShape whole{.grid = dim3(static_cast<unsigned>(params.max_rows), 2),
                            .block = dim3(kRmsThreads)};
    if (Status status = launch(whole_rms_kernel, whole, stream, "whole_rms", params); !status) {
      return status;
    }
  }
  const std::int64_t num_heads = params.num_q_heads + 2 * params.kv.num_kv_heads;
  const int heads_per_warp = params.max_rows < kManyRows ? 1 : kManyHeads;
  const std::int64_t heads_per_block = kWarps * heads_per_warp;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(params.max_rows),
                   static_cast<unsigned>((num_heads + heads_per_block - 1) / heads_per_block)),
      .block = dim3(kWarps * kWarpSize)};
  const auto kernel = params.kv.head_dim == 64    ? kernel_of<64>(heads_per_warp)
                      : params.kv.head_dim == 128 ? kernel_of<128>(heads_per_warp)
                                                  : kernel_of<256>(heads_per_warp);
  return launch(kernel, shape, stream, "rope_kv_write", params);
}

}  // namespace fastfd::kernels::cuda
