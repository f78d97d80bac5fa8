#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/sigmoid_gate/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread eight neighbouring elements.
__global__ void __launch_bounds__(kThreads) sigmoid_gate_kernel(SigmoidGateParams params) {
  const std::int64_t row = blockIdx.x;
  const auto group = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (row >= params.control->num_rows || group >= params.dim / kGroupValues) {
    return;
  }
  const std::int64_t first = row * params.dim + group * kGroupValues;
  auto* const y = reinterpret_cast<uint4*>(params.y + first);
  const Group gate = unpack_bf16(*reinterpret_cast<const uint4*>(params.gate + first));
  Group values = unpack_bf16(*y);
#pragma unroll
  for (std::uint32_t i = 0; i < kGroupValues; ++i) {
    values.values[i] /= 1.0F + expf(-gate.values[i]);
  }
  *y = pack_bf16(values);
}

}  // namespace

Status launch_sigmoid_gate(const SigmoidGateParams& params, device::CudaStream stream) {
  if (params.max_rows < 0 || params.dim < 1 || params.dim % kGroupValues != 0) {
    return {StatusCode::kInvalidArgument,
            "sigmoid gate: no kernel for rows of " + std::to_string(params.dim)};
  }
  const std::int64_t num_groups = params.dim / kGroupValues;
  return launch(sigmoid_gate_kernel,
                {.grid = dim3(static_cast<unsigned>(params.max_rows),
                              static_cast<unsigned>((num_groups + kThreads - 1) / kThreads)),
                 .block = dim3(kThreads)},
                stream, "sigmoid_gate", params);
}

}  // namespace fastfd::kernels::cuda
