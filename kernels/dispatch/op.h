#pragma once

/// The CPU form of M2N dispatch: after the router chose, every row goes to each FFN server that
/// holds at least one of its experts, once, with only the routes that live there.

#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/core/status.h"

namespace fastfd::kernels {

/// One FFN server's dispatch buffer (a window in its memory).
struct DispatchTarget {
  std::byte* rows = nullptr;               ///< [max_rows, hidden_dim] of `dtype`
  std::uint32_t* route_offsets = nullptr;  ///< [max_rows + 1]
  std::uint32_t* route_experts = nullptr;  ///< [max_rows * top_k], local expert ids
  float* route_weights = nullptr;          ///< [max_rows * top_k]
  std::uint32_t num_rows = 0;              ///< out
  std::uint32_t num_routes = 0;            ///< out
};

struct DispatchParams {
  std::int64_t num_rows = 0;
  std::int64_t hidden_dim = 0;
  std::int64_t top_k = 0;
  const float* hidden = nullptr;          ///< [num_rows, hidden_dim], normalised
  const std::int32_t* experts = nullptr;  ///< [num_rows, top_k], global ids
  const float* weights = nullptr;         ///< [num_rows, top_k]
  DType dtype = DType::kFloat32;          ///< of the payload: kFloat32 or kBFloat16
  const ExpertPlacement* placement = nullptr;
  ServerRank attention_rank = 0;      ///< picks the replica
  std::span<DispatchTarget> targets;  ///< [num_ffn_servers]
  /// [num_ffn_servers, num_rows]: where a row went in that server's buffer, -1 if it did not go.
  std::int32_t* row_index = nullptr;
};

/// Fills targets and row_index. Routes of a row keep the router's order. An expert id that the
/// placement does not know is kInternal.
Status launch_dispatch(const DispatchParams& params);
/// The same, one server after the other. Every expert id must be valid.
void reference_dispatch(const DispatchParams& params);

}  // namespace fastfd::kernels
