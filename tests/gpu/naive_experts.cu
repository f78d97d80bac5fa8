#include <cuda_fp8.h>

#include "gpu/naive_experts.h"

namespace fastfd::testing {
namespace {

constexpr std::uint32_t kThreads = 128;

__device__ float to_float(bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

__device__ float load(const layout::RowLayout& layout, const std::byte* row, std::uint32_t i) {
  if (layout.dtype == DType::kBFloat16) {
    return to_float(reinterpret_cast<const bf16*>(row)[i]);
  }
  __nv_fp8_e4m3 value;
  value.__x = static_cast<std::uint8_t>(row[i]);
  return static_cast<float>(value) * layout.scales(row)[i / layout::kScaleGroup];
}

__device__ float dot(const bf16* weights, const float* x, std::uint32_t dim) {
  float sum = 0.0F;
  for (std::uint32_t i = 0; i < dim; ++i) {
    sum += to_float(weights[i]) * x[i];
  }
  return sum;
}

__global__ void naive_expert_kernel(const NaiveExpertParams params) {
  __shared__ float x[1024];
  __shared__ float hidden[256];
  const std::uint32_t route = blockIdx.x;
  if (route >= params.routes.expert_begin[params.num_experts]) {
    return;
  }
  std::uint32_t expert = 0;
  while (params.routes.expert_begin[expert + 1] <= route) {
    ++expert;
  }
  const std::uint32_t hidden_dim = params.row.hidden_dim;
  const auto* row =
      static_cast<const std::byte*>(params.token_rows[params.routes.route_tokens[route]]);
  for (std::uint32_t i = threadIdx.x; i < hidden_dim; i += kThreads) {
    x[i] = load(params.row, row, i);
  }
  __syncthreads();
  const std::size_t base = static_cast<std::size_t>(expert) * params.intermediate_dim * hidden_dim;
  for (std::uint32_t i = threadIdx.x; i < params.intermediate_dim; i += kThreads) {
    const float gate = dot(params.gate + base + i * hidden_dim, x, hidden_dim);
    const float up = dot(params.up + base + i * hidden_dim, x, hidden_dim);
    hidden[i] = gate / (1.0F + expf(-gate)) * up;
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < hidden_dim; i += kThreads) {
    params.outputs[static_cast<std::size_t>(route) * hidden_dim + i] =
        dot(params.down + base + i * params.intermediate_dim, hidden, params.intermediate_dim);
  }
}

}  // namespace

void launch_naive_experts(const NaiveExpertParams& params, device::CudaStream stream) {
  naive_expert_kernel<<<params.max_routes, kThreads, 0, stream>>>(params);
}

}  // namespace fastfd::testing
