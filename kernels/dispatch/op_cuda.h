#pragma once

/// The GPU form of M2N dispatch, both halves.
///
/// Attention server: residual -> RMSNorm -> router -> top-k -> payload -> the peers' windows ->
/// flags (launch_dispatch). FFN server: launch_wait, then launch_index, which turns what arrived
/// from all participants into token and route lists for the grouped GEMM.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/cuda/norm_weight.h"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/layout/lane_control.h"
#include "kernels/layout/row.h"
#include "kernels/layout/window.h"
#include "kernels/router/op.h"

namespace fastfd::kernels::cuda {

inline constexpr std::uint32_t kMaxExperts = 512;
inline constexpr std::uint32_t kMaxTopK = 32;
inline constexpr std::uint32_t kMaxExpertGroups = 32;

enum class RouterScoring : std::uint8_t {
  kSoftmax,
  /// Score is sigmoid(logit); score + correction_bias chooses, the score itself weighs.
  kSigmoid,
  /// No router: every row goes to every expert with weight 1 (slices of a dense FFN). The placement
  /// puts at most max_routes_per_row of them on a server.
  kAll,
};

struct RouterParams {
  RouterScoring scoring = RouterScoring::kSoftmax;
  std::uint32_t num_experts = 0;
  std::uint32_t top_k = 0;  ///< kAll: num_experts
  bool renormalize = true;  ///< weights of a row sum to 1, before scaling
  float scaling_factor = 1.0F;
  // As in RouterRule (kernels/router/op.h); kAll: 1 of 1.
  std::uint32_t num_groups = 1;
  std::uint32_t top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  const bf16* weights = nullptr;           ///< [num_experts, hidden_dim]
  const float* correction_bias = nullptr;  ///< [num_experts], kSigmoid only, may be nullptr
};

/// Counters of launch_dispatch: one a lane, all zero before the first launch. Every launch leaves
/// it zero again.
struct alignas(128) DispatchCounters {
  std::uint64_t sent[kMaxServers];  ///< rows in the upper half, routes in the lower
  std::uint32_t ctas_done;
};

/// Logits come from normalised values in float times bf16 weights; equal scores go to the lower
/// expert id; a row's result does not depend on the other rows. Rows take positions in a server's
/// window in no particular order. All pointers are device memory; what is written to a peer is its
/// header, flag, rows and routes of the hop's slot and nothing else.
struct DispatchParams {
  const layout::LaneControl* control = nullptr;
  layout::LaneHop hop;
  std::uint32_t max_rows = 0;       ///< the shape bucket: control->num_rows is at most this
  std::uint32_t hidden_dim = 0;     ///< a multiple of 128, at most 8192
  const float* residual = nullptr;  ///< [max_rows, hidden_dim]
  NormWeight norm;
  RouterParams router;
  /// [num_experts]: where this attention server finds each expert. Read at every launch.
  const ExpertPlacement::Target* placement = nullptr;
  std::byte* const* windows = nullptr;  ///< [num_servers] dispatch windows; nullptr: no such server
  std::uint32_t num_servers = 0;
  layout::DispatchLayout window;
  layout::RowLayout row;  ///< kBFloat16 or kFloat8E4M3; fills window.dims.row_bytes

  std::int32_t* row_index = nullptr;   ///< out [num_servers, max_rows]: position there or -1
  std::uint32_t* sent_rows = nullptr;  ///< out [num_servers]
  bf16* normed = nullptr;              ///< out [max_rows, hidden_dim] or nullptr: the norm's result
  std::int32_t* experts = nullptr;     ///< out [max_rows, top_k] or nullptr, descending weight
  float* weights = nullptr;            ///< out [max_rows, top_k] or nullptr

  float* partial_logits = nullptr;  ///< scratch, router_scratch_floats() of this shape
  DispatchCounters* counters = nullptr;
  layout::AbortState* abort = nullptr;
};

/// Floats that partial_logits must have room for.
std::size_t router_scratch_floats(std::uint32_t max_rows, std::uint32_t num_experts,
                                  std::uint32_t hidden_dim);

/// Two kernels, the second already loading while the first ends. With `abort` set nothing is stored
/// to peers and no flag is raised. An expert that is placed on a server without a window sets
/// `abort` (kBadPlacement), as do more rows than max_rows (kBadPlan): then no flag is raised.
/// kInvalidArgument: a shape or dtype that is not supported.
Status launch_dispatch(const DispatchParams& params, device::CudaStream stream);

/// Whose row a token is.
struct TokenSource {
  std::uint32_t peer = 0;  ///< attention rank
  std::uint32_t row = 0;   ///< in its dispatch window, and so in its combine window
};

/// What launch_index writes: device memory of one lane.
struct RouteTables {
  std::uint32_t* expert_begin = nullptr;       ///< [num_experts + 1]
  std::uint32_t* route_tokens = nullptr;       ///< [max_routes]
  float* route_weights = nullptr;              ///< [max_routes]
  std::uint32_t* num_tokens = nullptr;         ///< [1]
  std::uint32_t* token_route_begin = nullptr;  ///< [max_tokens + 1]
  std::uint32_t* token_routes = nullptr;       ///< [max_routes]
  const void** token_rows = nullptr;           ///< [max_tokens] payloads, where they arrived
  TokenSource* token_sources = nullptr;        ///< [max_tokens]
  std::uint32_t* peer_rows = nullptr;          ///< [num_peers]: to be answered

  ExpertRoutes expert_routes() const {
    return {expert_begin, route_tokens, route_weights, num_tokens};
  }
  TokenRoutes routes_by_token() const { return {token_route_begin, token_routes}; }
};

/// Tokens are numbered by peer, then row; everything follows from the windows in a fixed order.
/// Nothing a peer sent is trusted: a message whose counts, offsets or expert ids don't fit sets
/// `abort` (kBadMessage) and leaves lists that can be walked safely, as does a wait that gave up.
struct IndexParams {
  const layout::LaneControl* control = nullptr;
  layout::LaneHop hop;
  const std::uint32_t* ready = nullptr;  ///< what launch_wait wrote
  std::byte* const* windows = nullptr;   ///< [num_peers] own dispatch windows, or nullptr
  std::uint32_t num_peers = 0;           ///< attention servers, at most kMaxServers
  layout::DispatchLayout window;
  std::uint32_t num_experts = 0;  ///< local ones
  std::uint32_t max_tokens = 0;   ///< the shape bucket: of all peers together
  std::uint32_t max_routes = 0;
  RouteTables tables;
  layout::AbortState* abort = nullptr;
};
Status launch_index(const IndexParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
