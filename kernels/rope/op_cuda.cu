#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rope/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kWarps = 4;

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

/// Element `i` after rotation; `x` holds the whole head.
__device__ float rotated(const float* x, const float* cos, const float* sin, int i, int half) {
  if (i >= 2 * half) {
    return x[i];
  }
  return i < half ? x[i] * cos[i] - x[i + half] * sin[i]
                  : x[i] * cos[i - half] + x[i - half] * sin[i - half];
}

/// First element of the key or value row of `entry` in the pool.
__device__ std::int64_t pool_element(const PagedKv& kv, const layout::LaneRow& entry, int kv_head) {
  const int shift = __ffsll(kv.page_size) - 1;
  const std::int64_t page =
      kv.page_tables[entry.slot * kv.pages_per_slot + (entry.position >> shift)];
  const std::int64_t offset = entry.position & (kv.page_size - 1);
  return ((page * kv.num_kv_heads + kv_head) * kv.page_size + offset) * kv.head_dim;
}

/// One warp a (row, head); heads in the order of the projection: queries, keys, values.
template <int kHeadDim>
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
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (head >= num_q + 2 * num_kv) {
    return;
  }
  const bool is_value = head >= num_q + num_kv;
  const layout::LaneRow entry = params.rows[row];
  const bf16* in = params.qkv + (row * (num_q + 2 * num_kv) + head) * kHeadDim;

  float* x = shared[warp];
  float2 values[kPairs];
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    values[j] =
        __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(in)[lane + j * kWarpSize]);
    sum += values[j].x * values[j].x + values[j].y * values[j].y;
  }
  const float* weight = head < num_q ? params.q_norm_weight : params.k_norm_weight;
  const bool has_norm = !is_value && weight != nullptr;
  sum = reduce_warp(sum, Sum{});
  const float inverse = 1.0F / sqrtf(sum / kHeadDim + params.eps);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = 2 * (lane + j * kWarpSize);
    x[i] = has_norm ? values[j].x * inverse * weight[i] : values[j].x;
    x[i + 1] = has_norm ? values[j].y * inverse * weight[i + 1] : values[j].y;
  }
  __syncwarp();

  const int half = is_value ? 0 : static_cast<int>(params.rotary_dim / 2);
  const std::int64_t position =
      min(static_cast<std::int64_t>(entry.position), params.max_positions - 1);
  const float* cos = params.cos + position * half;
  const float* sin = params.sin + position * half;
  const int kv_head = (head - num_q) % num_kv;
  const std::int64_t element = head < num_q ? 0 : pool_element(params.kv, entry, kv_head);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = 2 * (lane + j * kWarpSize);
    const float a = rotated(x, cos, sin, i, half);
    const float b = rotated(x, cos, sin, i + 1, half);
    if (head < num_q) {
      store_pair(params.q + (row * num_q + head) * kHeadDim + i, a, b);
    } else {
      const float scale = is_value ? params.kv.value_scale : params.kv.key_scale;
      store_kv_pair(is_value ? params.kv.values : params.kv.keys, params.kv.dtype, element + i, a,
                    b, 1.0F / scale);
    }
  }
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
  const std::int64_t num_heads = params.num_q_heads + 2 * params.kv.num_kv_heads;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.max_rows),
                                       static_cast<unsigned>((num_heads + kWarps - 1) / kWarps)),
                          .block = dim3(kWarps * kWarpSize)};
  const auto kernel = params.kv.head_dim == 64    ? rope_kv_write_kernel<64>
                      : params.kv.head_dim == 128 ? rope_kv_write_kernel<128>
                                                  : rope_kv_write_kernel<256>;
  return launch(kernel, shape, stream, "rope_kv_write", params);
}

}  // namespace fastfd::kernels::cuda
