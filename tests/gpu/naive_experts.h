#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/layout/row.h"

namespace fastfd::testing {

/// down(silu(gate(x)) * up(x)) of every route by plain loops, one CTA a route.
struct NaiveExpertParams {
  std::uint32_t num_experts = 0;
  std::uint32_t intermediate_dim = 0;  ///< at most 256
  std::uint32_t max_routes = 0;
  layout::RowLayout row;  ///< hidden_dim at most 1024
  kernels::cuda::ExpertRoutes routes;
  const void* const* token_rows = nullptr;
  const bf16* gate = nullptr;  ///< [num_experts, intermediate_dim, hidden_dim]
  const bf16* up = nullptr;    ///< same
  const bf16* down = nullptr;  ///< [num_experts, hidden_dim, intermediate_dim]
  float* outputs = nullptr;    ///< [max_routes, hidden_dim]
};
void launch_naive_experts(const NaiveExpertParams& params, device::CudaStream stream);

}  // namespace fastfd::testing
