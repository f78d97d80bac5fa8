#pragma once

/// The experts of one FFN server's layer on the GPU: two grouped GEMMs over rows that stay where
/// the attention servers stored them. The index kernel in front of them (kernels/dispatch) turns
/// the dispatch windows into ExpertRoutes and TokenRoutes; the combine kernel behind them weights
/// and sums the routes' outputs.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/row.h"

namespace fastfd::kernels::cuda {

/// The routes of one (step, layer, lane) that live on this server, grouped by local expert. All
/// pointers are device memory that the index kernel fills; nothing of it is known to the host. An
/// index kernel that gave up leaves expert_begin all zero.
struct ExpertRoutes {
  const std::uint32_t* expert_begin = nullptr;  ///< [num_experts + 1], ascending from 0; the last
                                                ///< one is num_routes
  const std::uint32_t* route_tokens = nullptr;  ///< [num_routes] token, ascending in an expert
  const float* route_weights = nullptr;         ///< [num_routes]
  const std::uint32_t* num_tokens = nullptr;    ///< [1]
};

/// The same routes by token, for the weighted partial sum.
struct TokenRoutes {
  const std::uint32_t* token_route_begin = nullptr;  ///< [num_tokens + 1], ascending from 0
  const std::uint32_t* token_routes = nullptr;       ///< [num_routes] positions in ExpertRoutes'
                                                     ///< order, ascending local expert
};

/// Weights of a layer's local experts, row-major as in checkpoints, 16-byte aligned.
struct ExpertWeights {
  DType dtype = DType::kBFloat16;         ///< kBFloat16 or kFloat8E4M3 (block-scaled)
  const void* gate_up = nullptr;          ///< [num_experts, 2 * intermediate_dim, hidden_dim]; an
                                          ///< expert's gate rows, then its up rows
  const void* down = nullptr;             ///< [num_experts, hidden_dim, intermediate_dim]
  const float* gate_up_scales = nullptr;  ///< FP8: [num_experts, 2 * intermediate_dim / 128,
                                          ///< hidden_dim / 128]; value = scale * e4m3
  const float* down_scales = nullptr;     ///< FP8: [num_experts, hidden_dim / 128,
                                          ///< intermediate_dim / 128]
};

struct ExpertFfnParams {
  std::int64_t num_experts = 0;       ///< local ones, 1 .. kMaxLocalExperts
  std::int64_t hidden_dim = 0;        ///< multiple of 128
  std::int64_t intermediate_dim = 0;  ///< multiple of 128
  std::int64_t max_routes = 0;        ///< the shape bucket: num_routes never exceeds it
  ExpertRoutes routes;
  ExpertWeights weights;
  /// [num_tokens] -> a row as layout::RowLayout{hidden_dim, weights.dtype} has it, 16-byte aligned.
  /// Device addresses in device memory.
  const void* const* token_rows = nullptr;
  void* hidden = nullptr;          ///< [max_routes, intermediate_dim] of weights.dtype, 16-byte
                                   ///< aligned: between the GEMMs
  float* hidden_scales = nullptr;  ///< FP8: [max_routes, intermediate_dim / 128]
  void* route_outputs = nullptr;   ///< [max_routes, hidden_dim] of output_dtype, 16-byte aligned,
                                   ///< in ExpertRoutes' order, not yet weighted
  DType output_dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat32
  int num_ctas = 0;  ///< resident thread blocks: the multiprocessors of the stream's partition;
                     ///< 0: the device's
};

inline constexpr std::int64_t kMaxLocalExperts = 512;

/// hidden = silu(gate(x)) * up(x) for every route; FP8: requantised with a scale per 128 values.
/// Graph-capturable; experts without routes cost nothing. A route's bits depend only on its row and
/// expert: not on the other routes and not on max_routes. kInvalidArgument: a dimension or dtype
/// that is not as above.
Status launch_expert_gate_up(const ExpertFfnParams& params, device::CudaStream stream);

/// route_outputs = down(hidden), after launch_expert_gate_up on the same stream.
Status launch_expert_down(const ExpertFfnParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
