#include <cuda_bf16.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// float4 of a row that a thread keeps between the two passes; more than that is read again.
constexpr int kKept = 4;

__device__ float square_sum(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

__device__ void store_scaled(bf16* y, float4 v, float4 weight, float inverse) {
  const __nv_bfloat162 low =
      __floats2bfloat162_rn(v.x * inverse * weight.x, v.y * inverse * weight.y);
  const __nv_bfloat162 high =
      __floats2bfloat162_rn(v.z * inverse * weight.z, v.w * inverse * weight.w);
  *reinterpret_cast<uint2*>(y) = make_uint2(*reinterpret_cast<const unsigned*>(&low),
                                            *reinterpret_cast<const unsigned*>(&high));
}

/// One block a row.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormParams params) {
  __shared__ float sums[kThreads / kWarpSize];
  const std::int64_t row = blockIdx.x;
  const bool samples = params.samples != nullptr;
  if (row >= (samples ? params.control->num_samples : params.control->num_rows)) {
    return;
  }
  const std::int64_t source = samples ? params.samples[row].row : row;
  const auto* x = reinterpret_cast<const float4*>(params.x + source * params.dim);
  const auto* weight = reinterpret_cast<const float4*>(params.weight);
  const int num_vectors = static_cast<int>(params.dim / 4);
  const int thread = static_cast<int>(threadIdx.x);

  float4 kept[kKept];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int at = thread + i * kThreads;
    kept[i] = at < num_vectors ? x[at] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    sum += square_sum(kept[i]);
  }
  for (int at = thread + kKept * kThreads; at < num_vectors; at += kThreads) {
    sum += square_sum(x[at]);
  }
  sum = reduce_block<kThreads>(sum, 0.0F, sums, Sum{});
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(params.dim) + params.eps);

  bf16* y = params.y + row * params.dim;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int at = thread + i * kThreads;
    if (at < num_vectors) {
      store_scaled(y + at * 4, kept[i], weight[at], inverse);
    }
  }
  for (int at = thread + kKept * kThreads; at < num_vectors; at += kThreads) {
    store_scaled(y + at * 4, x[at], weight[at], inverse);
  }
}

}  // namespace

Status launch_rms_norm(const RmsNormParams& params, device::CudaStream stream) {
  if (params.max_rows < 0 || params.dim < 4 || params.dim % 4 != 0) {
    return {StatusCode::kInvalidArgument,
            "rms norm: needs a dim that is a multiple of 4, not " + std::to_string(params.dim)};
  }
  return launch(rms_norm_kernel,
                {.grid = dim3(static_cast<unsigned>(params.max_rows)), .block = dim3(kThreads)},
                stream, "rms_norm", params);
}

}  // namespace fastfd::kernels::cuda
