#include <cuda_bf16.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/latent_attention/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kHalf = kLatentRopeDim / 2;  ///< pairs that rotate: one a lane
static_assert(kHalf == kWarpSize);

struct Rotated {
  float low;   ///< element i
  float high;  ///< element i + kHalf
};

__device__ Rotated rotate(const LatentRowsParams& params, std::uint32_t position, float a,
                          float b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t angle =
      min(static_cast<std::int64_t>(position), params.max_positions - 1) * kHalf + lane;
  const float cos = params.cos[angle];
  const float sin = params.sin[angle];
  return {a * cos - b * sin, b * cos + a * sin};
}

/// The two elements of a lane's pair.
template <typename Element>
__device__ float2 load_pair(const LatentRowsParams& params, const Element* x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first = params.interleaved ? 2 * lane : lane;
  const int second = params.interleaved ? first + 1 : lane + kHalf;
  return {static_cast<float>(x[first]), static_cast<float>(x[second])};
}

__device__ void store_pair(bf16* to, const Rotated& pair) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  auto* out = reinterpret_cast<__nv_bfloat16*>(to);
  out[lane] = __float2bfloat16_rn(pair.low);
  out[lane + kHalf] = __float2bfloat16_rn(pair.high);
}

/// A row's latent part normalised and its key rotated, into its place in the pages.
__device__ void store_latent(const LatentRowsParams& params, std::int64_t row,
                             const layout::LaneRow& entry) {
  constexpr int kFours = static_cast<int>(kLatentDim) / (4 * kWarpSize);  // a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float* kv = params.kv + row * kLatentRowDim;
  float4 values[kFours];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    values[i] = reinterpret_cast<const float4*>(kv)[lane + i * kWarpSize];
    sum += values[i].x * values[i].x + values[i].y * values[i].y + values[i].z * values[i].z +
           values[i].w * values[i].w;
  }
  const float inverse = 1.0F / sqrtf(reduce_warp(sum, Sum{}) / kLatentDim + params.eps);
  const PagedLatents& latents = params.latents;
  const int shift = __ffsll(latents.page_size) - 1;
  const std::int64_t page =
      latents.page_tables[entry.slot * latents.pages_per_slot + (entry.position >> shift)];
  bf16* to =
      latents.rows +
      (page * latents.page_size + (entry.position & (latents.page_size - 1))) * kLatentRowDim;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float4 w = reinterpret_cast<const float4*>(params.norm_weight)[lane + i * kWarpSize];
    const float4& x = values[i];
    const __nv_bfloat162 pairs[2] = {
        __floats2bfloat162_rn(x.x * inverse * w.x, x.y * inverse * w.y),
        __floats2bfloat162_rn(x.z * inverse * w.z, x.w * inverse * w.w)};
    reinterpret_cast<uint2*>(to)[lane + i * kWarpSize] = *reinterpret_cast<const uint2*>(pairs);
  }
  const float2 key = load_pair(params, kv + kLatentDim);
  store_pair(to + kLatentDim, rotate(params, entry.position, key.x, key.y));
}

/// One warp a row and unit: the latent row, then each query head.
__global__ void __launch_bounds__(kWarps* kWarpSize)
    latent_rows_kernel(const __grid_constant__ LatentRowsParams params) {
  const std::int64_t row = blockIdx.x;
  if (row >= params.control->num_rows || params.abort->aborted != 0) {
    return;
  }
  const int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / kWarpSize);
  const layout::LaneRow entry = params.rows[row];
  if (unit == 0) {
    store_latent(params, row, entry);
    return;
  }
  const std::int64_t query = row * params.num_heads + unit - 1;
  if (unit > params.num_heads) {
    return;
  }
  const auto* q = reinterpret_cast<const __nv_bfloat16*>(params.q) +
                  query * (params.nope_dim + kLatentRopeDim) + params.nope_dim;
  const float2 pair = load_pair(params, q);
  store_pair(params.queries + query * kLatentRowDim + kLatentDim,
             rotate(params, entry.position, pair.x, pair.y));
}

}  // namespace

Status launch_latent_rows(const LatentRowsParams& params, device::CudaStream stream) {
  const PagedLatents& latents = params.latents;
  if (params.max_rows < 0 || params.num_heads < 1 || params.nope_dim < 0 ||
      params.max_positions < 1 || latents.page_size < 1 ||
      (latents.page_size & (latents.page_size - 1)) != 0 || latents.pages_per_slot < 1) {
    return {StatusCode::kInvalidArgument, "latent rows: no kernel for " +
                                              std::to_string(params.num_heads) + " heads of " +
                                              std::to_string(params.nope_dim) + " + 64, pages of " +
                                              std::to_string(latents.page_size) + ", " +
                                              std::to_string(params.max_positions) + " positions"};
  }
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(params.max_rows),
                   static_cast<unsigned>((params.num_heads + 1 + kWarps - 1) / kWarps)),
      .block = dim3(kWarps * kWarpSize)};
  return launch(latent_rows_kernel, shape, stream, "latent_rows", params);
}

}  // namespace fastfd::kernels::cuda
