#pragma once

/// M attention servers and N FFN servers of one process, with all their windows, running the
/// data-plane kernels of a few layers; and the same layers on the CPU.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "fastfd/core/expert_placement.h"
#include "gpu/moe_support.h"
#include "gpu/naive_experts.h"
#include "kernels/combine/op_cuda.h"
#include "kernels/dispatch/op.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/expert_ffn/op.h"
#include "kernels/norm/op.h"
#include "kernels/router/op.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::testing {

struct ClusterCase {
  std::uint32_t num_attention = 1;
  std::uint32_t num_ffn = 1;
  std::uint32_t num_experts = 10;
  std::uint32_t top_k = 2;
  std::uint32_t num_layers = 3;
  std::uint32_t hidden_dim = 256;
  std::uint32_t intermediate_dim = 64;
  std::uint32_t max_rows = 24;
  DType dispatch_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
};

/// Weights of a layer, the same for both paths.
struct LayerWeights {
  std::vector<bf16> norm;    ///< [hidden_dim]
  std::vector<bf16> router;  ///< [num_experts, hidden_dim]
  std::vector<bf16> gate;    ///< [num_experts, intermediate_dim, hidden_dim]
  std::vector<bf16> up;      ///< same
  std::vector<bf16> down;    ///< [num_experts, hidden_dim, intermediate_dim]
};

inline LayerWeights random_layer(const ClusterCase& c, std::uint32_t seed) {
  const std::size_t matrix = std::size_t{c.num_experts} * c.intermediate_dim * c.hidden_dim;
  const float in = 1.0F / std::sqrt(static_cast<float>(c.hidden_dim));
  const float out = 2.0F / std::sqrt(static_cast<float>(c.intermediate_dim));
  return {to_bf16(random_floats(c.hidden_dim, seed, 0.2F, 1.0F)),
          to_bf16(random_floats(std::size_t{c.num_experts} * c.hidden_dim, seed + 1, in)),
          to_bf16(random_floats(matrix, seed + 2, in)),
          to_bf16(random_floats(matrix, seed + 3, in)),
          to_bf16(random_floats(matrix, seed + 4, out))};
}

/// What both kinds of server have.
struct ServerState {
  DeviceValue<layout::LaneControl> control;
  DeviceValue<layout::AbortState> abort;
  DeviceValue<std::uint64_t> timeout_ns{2'000'000'000};
  DeviceValue<std::uint32_t> ready{0};
  PinnedWord abort_word;
  TestStream stream;
};

struct AttentionState : ServerState {
  explicit AttentionState(const ClusterCase& c)
      : residual(std::size_t{c.max_rows} * c.hidden_dim),
        y(std::size_t{c.max_rows} * c.hidden_dim),
        row_index(std::size_t{c.num_ffn} * c.max_rows),
        sent_rows(c.num_ffn),
        partial(kernels::cuda::router_scratch_floats(c.max_rows, c.num_experts, c.hidden_dim)),
        targets(c.num_experts),
        dispatch_windows(c.num_ffn),
        combine_windows(c.num_ffn) {}
  DeviceArray<float> residual;
  DeviceArray<bf16> y;
  DeviceArray<std::int32_t> row_index;
  DeviceArray<std::uint32_t> sent_rows;
  DeviceArray<float> partial;
  DeviceArray<ExpertPlacement::Target> targets;
  DeviceArray<std::byte*> dispatch_windows;
  DeviceArray<std::byte*> combine_windows;
  DeviceValue<kernels::cuda::DispatchCounters> counters{kernels::cuda::DispatchCounters{}};
};

struct FfnState : ServerState {
  FfnState(const ClusterCase& c, std::uint32_t max_tokens, std::uint32_t num_local)
      : num_experts(num_local),
        expert_begin(num_local + 1),
        route_tokens(std::size_t{max_tokens} * c.top_k),
        route_weights(std::size_t{max_tokens} * c.top_k),
        token_route_begin(max_tokens + 1),
        token_routes(std::size_t{max_tokens} * c.top_k),
        token_rows(max_tokens),
        token_sources(max_tokens),
        peer_rows(c.num_attention),
        outputs(std::size_t{max_tokens} * c.top_k * c.hidden_dim),
        dispatch_windows(c.num_attention),
        combine_windows(c.num_attention) {}

  kernels::cuda::RouteTables tables() {
    return {expert_begin.data(), route_tokens.data(),      route_weights.data(),
            num_tokens.data(),   token_route_begin.data(), token_routes.data(),
            token_rows.data(),   token_sources.data(),     peer_rows.data()};
  }

  std::uint32_t num_experts;
  DeviceArray<std::uint32_t> expert_begin;
  DeviceArray<std::uint32_t> route_tokens;
  DeviceArray<float> route_weights;
  DeviceValue<std::uint32_t> num_tokens{0};
  DeviceArray<std::uint32_t> token_route_begin;
  DeviceArray<std::uint32_t> token_routes;
  DeviceArray<const void*> token_rows;
  DeviceArray<kernels::cuda::TokenSource> token_sources;
  DeviceArray<std::uint32_t> peer_rows;
  DeviceArray<float> outputs;
  DeviceArray<std::byte*> dispatch_windows;
  DeviceArray<std::byte*> combine_windows;
  DeviceValue<std::uint32_t> ctas_done{0};
};

class MoeCluster {
 public:
  explicit MoeCluster(const ClusterCase& c);

  /// Rows of every server in the step to come; 0: takes part with none.
  void begin_step(const std::vector<std::uint32_t>& num_rows, ServerMask participants);

  // Each server's part of one layer, on its own stream or on `stream`.
  void enqueue_dispatch(std::uint32_t attention, std::uint32_t layer, cudaStream_t stream);
  void enqueue_combine(std::uint32_t attention, std::uint32_t layer, cudaStream_t stream);
  void enqueue_ffn(std::uint32_t ffn, std::uint32_t layer, cudaStream_t stream);

  /// The step's layers on the CPU: residuals by server.
  std::vector<std::vector<float>> reference() const;

  ClusterCase shape;
  layout::RowLayout row;
  layout::DispatchLayout dispatch_layout;
  layout::CombineLayout combine_layout;
  ExpertPlacement placement;
  layout::LaneControl control = test_control();
  std::vector<LayerWeights> layers;
  std::vector<std::vector<float>> residuals;  ///< before the step
  std::vector<std::uint32_t> num_rows;
  std::vector<std::unique_ptr<AttentionState>> attention;
  std::vector<std::unique_ptr<FfnState>> ffn;

 private:
  struct DeviceLayer {
    explicit DeviceLayer(const LayerWeights& w) : norm(w.norm), router(w.router) {}
    DeviceArray<bf16> norm;
    DeviceArray<bf16> router;
    // Of each FFN server: its own experts.
    std::vector<std::unique_ptr<DeviceArray<bf16>>> gate;
    std::vector<std::unique_ptr<DeviceArray<bf16>>> up;
    std::vector<std::unique_ptr<DeviceArray<bf16>>> down;
  };

  layout::LaneHop hop(std::uint32_t layer) const { return {1, layer, shape.num_layers}; }
  std::uint32_t max_tokens() const { return shape.max_rows * shape.num_attention; }
  std::vector<bf16> local_experts(const std::vector<bf16>& all, std::uint32_t rank) const;
  std::vector<float> reference_layer(const LayerWeights& weights, std::uint32_t server,
                                     std::vector<float> residual) const;
  void require_ok(const Status& status) const {
    if (!status) {
      throw std::runtime_error(status.to_string());
    }
  }

  std::vector<std::unique_ptr<Windows>> dispatch_;  ///< [num_ffn]: owned there, one an attention
  std::vector<std::unique_ptr<Windows>> combine_;   ///< [num_attention]
  std::vector<std::unique_ptr<DeviceLayer>> device_layers_;
};

}  // namespace fastfd::testing
