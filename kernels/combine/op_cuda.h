#pragma once

/// The GPU form of N2M combine, both halves.
///
/// FFN server: weighted partial sums of each token's route outputs, stored into the windows of the
/// attention servers they came from, then flags (launch_combine_send). Attention server:
/// launch_wait over every FFN server, then launch_combine_receive: sum, residual and the next norm
/// in one.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/cuda/norm_weight.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"
#include "kernels/layout/window.h"

namespace fastfd::kernels::cuda {

/// Partial sum of a token = sum over its routes here, in ascending local expert order and in float,
/// of weight * output; it lies in the combine window where the token's row lay in the dispatch
/// window. All pointers are device memory; lists have room for max_tokens (token_route_begin for
/// one more).
struct CombineSendParams {
  const layout::LaneControl* control = nullptr;
  layout::LaneHop hop;
  std::uint32_t max_tokens = 0;  ///< the shape bucket of launch_index
  std::uint32_t hidden_dim = 0;  ///< a multiple of 8
  TokenRoutes routes;
  const float* route_weights = nullptr;        ///< [num_routes], ExpertRoutes' order
  const std::uint32_t* num_tokens = nullptr;   ///< [1]
  const TokenSource* token_sources = nullptr;  ///< [num_tokens]
  const std::uint32_t* peer_rows = nullptr;    ///< [num_peers]
  const void* route_outputs = nullptr;         ///< [num_routes, hidden_dim] of output_dtype
  DType output_dtype = DType::kBFloat16;       ///< kBFloat16 or kFloat32
  std::byte* const* windows = nullptr;         ///< [num_peers] combine windows; nullptr: no peer
  std::uint32_t num_peers = 0;
  layout::CombineLayout window;
  DType combine_dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat32
  std::uint32_t* ctas_done = nullptr;      ///< [1], one a lane; 0 before and after a launch
  layout::AbortState* abort = nullptr;
};

/// Answers every participant, also with no rows. With `abort` set nothing is stored and no flag is
/// raised. kInvalidArgument: a shape or dtype that is not as above.
Status launch_combine_send(const CombineSendParams& params, device::CudaStream stream);

/// residual[row] += sum over the FFN ranks, ascending and in float, of the partial sum at
/// row_index[rank, row]; then y = rms_norm(residual). A row's result does not depend on the others.
struct CombineReceiveParams {
  const layout::LaneControl* control = nullptr;
  layout::LaneHop hop;
  std::uint32_t max_rows = 0;    ///< the bucket: stride of row_index and bound of its rows
  std::uint32_t hidden_dim = 0;  ///< a multiple of 8, at most 8192
  float* residual = nullptr;     ///< [max_rows, hidden_dim], updated
  const std::byte* const* windows = nullptr;  ///< [num_servers] combine windows
  std::uint32_t num_servers = 0;
  layout::CombineLayout window;
  DType combine_dtype = DType::kBFloat16;   ///< kBFloat16 or kFloat32
  const std::int32_t* row_index = nullptr;  ///< [num_servers, max_rows] of launch_dispatch
  NormWeight norm;                          ///< without values: no norm, y is not written
  bf16* y = nullptr;                        ///< [max_rows, hidden_dim]
  /// nullptr: row i of y is that of row i, for control->num_rows rows. Else of row samples[i].row,
  /// for control->num_samples rows; other rows are left alone. [max_samples]
  const layout::LaneSample* samples = nullptr;
  std::uint32_t max_samples = 0;
  const layout::AbortState* abort = nullptr;
};

/// Does nothing if `abort` is set. kInvalidArgument: a shape or dtype that is not as above.
Status launch_combine_receive(const CombineReceiveParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
