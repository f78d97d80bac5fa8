#include <cuda_bf16.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/swiglu/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  ///< of 16 bytes

struct Values {
  __nv_bfloat162 pairs[kValues / 2];
};

__device__ Values load(const bf16* from) {
  const uint4 bytes = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Values*>(&bytes);
}

__device__ float silu(float x) { return x / (1.0F + expf(-x)); }

/// sigmoid(input . weight_project) of a block's row.
__device__ float row_weight(const SwigluParams& params, std::int64_t row, float* shared) {
  float sum = 0.0F;
  for (std::int64_t i = threadIdx.x * kValues; i < params.input_dim; i += kThreads * kValues) {
    const Values x = load(params.input + row * params.input_dim + i);
    const Values w = load(params.weight_project + i);
#pragma unroll
    for (int j = 0; j < kValues / 2; ++j) {
      const float2 a = __bfloat1622float2(x.pairs[j]);
      const float2 b = __bfloat1622float2(w.pairs[j]);
      sum += a.x * b.x + a.y * b.y;
    }
  }
  sum = reduce_block<kThreads>(sum, 0.0F, shared, Sum{});
  return 1.0F / (1.0F + expf(-sum));
}

/// One block a row.
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluParams params) {
  __shared__ float shared[kThreads / kWarpSize];
  const std::int64_t row = blockIdx.x;
  if (row >= params.control->num_rows) {
    return;
  }
  const float weight = params.weight_project != nullptr ? row_weight(params, row, shared) : 1.0F;
  const bf16* gate = params.gate_up + row * 2 * params.intermediate_dim;
  const bf16* up = gate + params.intermediate_dim;
  bf16* hidden = params.hidden + row * params.intermediate_dim;
  for (std::int64_t i = threadIdx.x * kValues; i < params.intermediate_dim;
       i += kThreads * kValues) {
    const Values gates = load(gate + i);
    const Values ups = load(up + i);
    Values out;
#pragma unroll
    for (int j = 0; j < kValues / 2; ++j) {
      const float2 g = __bfloat1622float2(gates.pairs[j]);
      const float2 u = __bfloat1622float2(ups.pairs[j]);
      out.pairs[j] = __floats2bfloat162_rn(weight * silu(g.x) * u.x, weight * silu(g.y) * u.y);
    }
    *reinterpret_cast<uint4*>(hidden + i) = *reinterpret_cast<const uint4*>(&out);
  }
}

}  // namespace

Status launch_swiglu(const SwigluParams& params, device::CudaStream stream) {
  const bool is_weighed = params.weight_project != nullptr;
  if (params.max_rows < 0 || params.intermediate_dim <= 0 ||
      params.intermediate_dim % kValues != 0 ||
      (is_weighed && (params.input == nullptr || params.input_dim % kValues != 0))) {
    return {StatusCode::kInvalidArgument, "swiglu: dimensions must be multiples of 8, got " +
                                              std::to_string(params.intermediate_dim) + " and " +
                                              std::to_string(params.input_dim)};
  }
  return launch(swiglu_kernel,
                {.grid = dim3(static_cast<unsigned>(params.max_rows)), .block = dim3(kThreads)},
                stream, "swiglu", params);
}

}  // namespace fastfd::kernels::cuda
