#include "gpu/moe_cluster.h"

namespace fastfd::testing {

namespace {

constexpr float kEps = 1e-5F;

}  // namespace

MoeCluster::MoeCluster(const ClusterCase& c)
    : shape(c),
      row{c.hidden_dim, c.dispatch_dtype},
      dispatch_layout(layout::DispatchLayout::make({c.max_rows, row.row_bytes(), c.top_k})),
      combine_layout(layout::CombineLayout::make(
          {c.max_rows, c.hidden_dim * static_cast<std::uint32_t>(dtype_bytes(c.combine_dtype)),
           0})),
      placement(ExpertPlacement::contiguous(c.num_experts, c.num_ffn, 1)),
      residuals(c.num_attention) {
  for (std::uint32_t rank = 0; rank < c.num_ffn; ++rank) {
    dispatch_.push_back(std::make_unique<Windows>(c.num_attention, dispatch_layout.grid));
    ffn.push_back(std::make_unique<FfnState>(
        c, max_tokens(), static_cast<std::uint32_t>(placement.experts_of(rank).size())));
  }
  for (std::uint32_t rank = 0; rank < c.num_attention; ++rank) {
    combine_.push_back(std::make_unique<Windows>(c.num_ffn, combine_layout.grid));
    attention.push_back(std::make_unique<AttentionState>(c));
    residuals[rank] = random_floats(std::size_t{c.max_rows} * c.hidden_dim, 50 + rank, 1.5F);
    std::vector<ExpertPlacement::Target> targets;
    for (std::uint32_t expert = 0; expert < c.num_experts; ++expert) {
      targets.push_back(placement.target(expert, rank));
    }
    attention[rank]->targets.put(targets);
    std::vector<std::byte*> to_peers;
    std::vector<std::byte*> from_peers;
    for (std::uint32_t peer = 0; peer < c.num_ffn; ++peer) {
      to_peers.push_back(dispatch_[peer]->window(rank));
      from_peers.push_back(combine_[rank]->window(peer));
    }
    attention[rank]->dispatch_windows.put(to_peers);
    attention[rank]->combine_windows.put(from_peers);
  }
  for (std::uint32_t rank = 0; rank < c.num_ffn; ++rank) {
    std::vector<std::byte*> from_peers;
    std::vector<std::byte*> to_peers;
    for (std::uint32_t peer = 0; peer < c.num_attention; ++peer) {
      from_peers.push_back(dispatch_[rank]->window(peer));
      to_peers.push_back(combine_[peer]->window(rank));
    }
    ffn[rank]->dispatch_windows.put(from_peers);
    ffn[rank]->combine_windows.put(to_peers);
  }
  for (std::uint32_t layer = 0; layer < c.num_layers; ++layer) {
    layers.push_back(random_layer(c, 100 * (layer + 1)));
    device_layers_.push_back(std::make_unique<DeviceLayer>(layers.back()));
    for (std::uint32_t rank = 0; rank < c.num_ffn; ++rank) {
      const auto upload = [&](const std::vector<bf16>& all) {
        return std::make_unique<DeviceArray<bf16>>(local_experts(all, rank));
      };
      device_layers_.back()->gate.push_back(upload(layers.back().gate));
      device_layers_.back()->up.push_back(upload(layers.back().up));
      device_layers_.back()->down.push_back(upload(layers.back().down));
    }
  }
}

std::vector<bf16> MoeCluster::local_experts(const std::vector<bf16>& all,
                                            std::uint32_t rank) const {
  const auto size = std::ptrdiff_t{shape.intermediate_dim} * shape.hidden_dim;
  std::vector<bf16> local;
  for (const std::uint32_t expert : placement.experts_of(rank)) {
    local.insert(local.end(), all.begin() + expert * size, all.begin() + (expert + 1) * size);
  }
  return local;
}

void MoeCluster::begin_step(const std::vector<std::uint32_t>& rows, ServerMask participants) {
  num_rows = rows;
  control.step += 1;
  control.participants = participants;
  for (std::uint32_t rank = 0; rank < shape.num_attention; ++rank) {
    control.num_rows = rows[rank];
    attention[rank]->control.put(control);
    attention[rank]->residual.put(residuals[rank]);
  }
  control.num_rows = 0;
  for (auto& server : ffn) {
    server->control.put(control);
  }
}

void MoeCluster::enqueue_dispatch(std::uint32_t rank, std::uint32_t layer, cudaStream_t stream) {
  AttentionState& state = *attention[rank];
  DeviceLayer& weights = *device_layers_[layer];
  require_ok(kernels::cuda::launch_dispatch({.control = state.control.data(),
                                             .hop = hop(layer),
                                             .max_rows = shape.max_rows,
                                             .hidden_dim = shape.hidden_dim,
                                             .residual = state.residual.data(),
                                             .norm = {.values = weights.norm.data(), .eps = kEps},
                                             .router = {.num_experts = shape.num_experts,
                                                        .top_k = shape.top_k,
                                                        .weights = weights.router.data()},
                                             .placement = state.targets.data(),
                                             .windows = state.dispatch_windows.data(),
                                             .num_servers = shape.num_ffn,
                                             .window = dispatch_layout,
                                             .row = row,
                                             .row_index = state.row_index.data(),
                                             .sent_rows = state.sent_rows.data(),
                                             .partial_logits = state.partial.data(),
                                             .counters = state.counters.data(),
                                             .abort = state.abort.data()},
                                            stream));
}

void MoeCluster::enqueue_combine(std::uint32_t rank, std::uint32_t layer, cudaStream_t stream) {
  AttentionState& state = *attention[rank];
  require_ok(kernels::cuda::launch_wait({.control = state.control.data(),
                                         .hop = hop(layer),
                                         .windows = state.combine_windows.data(),
                                         .num_peers = shape.num_ffn,
                                         .grid = combine_layout.grid,
                                         .participants_only = false,
                                         .expected_rows = state.sent_rows.data(),
                                         .timeout_ns = state.timeout_ns.data(),
                                         .abort_word = state.abort_word.data(),
                                         .ready = state.ready.data(),
                                         .abort = state.abort.data()},
                                        stream));
  require_ok(kernels::cuda::launch_combine_receive(
      {.control = state.control.data(),
       .hop = hop(layer),
       .max_rows = shape.max_rows,
       .hidden_dim = shape.hidden_dim,
       .residual = state.residual.data(),
       .windows = state.combine_windows.data(),
       .num_servers = shape.num_ffn,
       .window = combine_layout,
       .combine_dtype = shape.combine_dtype,
       .row_index = state.row_index.data(),
       .norm = {.values = device_layers_[layer]->norm.data(), .eps = kEps},
       .y = state.y.data(),
       .abort = state.abort.data()},
      stream));
}

void MoeCluster::enqueue_ffn(std::uint32_t rank, std::uint32_t layer, cudaStream_t stream) {
  FfnState& state = *ffn[rank];
  DeviceLayer& weights = *device_layers_[layer];
  require_ok(kernels::cuda::launch_wait({.control = state.control.data(),
                                         .hop = hop(layer),
                                         .windows = state.dispatch_windows.data(),
                                         .num_peers = shape.num_attention,
                                         .grid = dispatch_layout.grid,
                                         .timeout_ns = state.timeout_ns.data(),
                                         .abort_word = state.abort_word.data(),
                                         .ready = state.ready.data(),
                                         .abort = state.abort.data()},
                                        stream));
  const kernels::cuda::RouteTables tables = state.tables();
  require_ok(kernels::cuda::launch_index({.control = state.control.data(),
                                          .hop = hop(layer),
                                          .ready = state.ready.data(),
                                          .windows = state.dispatch_windows.data(),
                                          .num_peers = shape.num_attention,
                                          .window = dispatch_layout,
                                          .num_experts = state.num_experts,
                                          .max_tokens = max_tokens(),
                                          .max_routes = max_tokens() * shape.top_k,
                                          .tables = tables,
                                          .abort = state.abort.data()},
                                         stream));
  launch_naive_experts({.num_experts = state.num_experts,
                        .intermediate_dim = shape.intermediate_dim,
                        .max_routes = max_tokens() * shape.top_k,
                        .row = row,
                        .routes = tables.expert_routes(),
                        .token_rows = tables.token_rows,
                        .gate = weights.gate[rank]->data(),
                        .up = weights.up[rank]->data(),
                        .down = weights.down[rank]->data(),
                        .outputs = state.outputs.data()},
                       stream);
  require_ok(kernels::cuda::launch_combine_send({.control = state.control.data(),
                                                 .hop = hop(layer),
                                                 .max_tokens = max_tokens(),
                                                 .hidden_dim = shape.hidden_dim,
                                                 .routes = tables.routes_by_token(),
                                                 .route_weights = tables.route_weights,
                                                 .num_tokens = tables.num_tokens,
                                                 .token_sources = tables.token_sources,
                                                 .peer_rows = tables.peer_rows,
                                                 .route_outputs = state.outputs.data(),
                                                 .output_dtype = DType::kFloat32,
                                                 .windows = state.combine_windows.data(),
                                                 .num_peers = shape.num_attention,
                                                 .window = combine_layout,
                                                 .combine_dtype = shape.combine_dtype,
                                                 .ctas_done = state.ctas_done.data(),
                                                 .abort = state.abort.data()},
                                                stream));
}

// ---- CPU ----

namespace {

/// One FFN server's window in host memory.
struct HostTarget {
  HostTarget(const ClusterCase& c, std::size_t num_rows)
      : rows((num_rows + 1) * c.hidden_dim),
        offsets(num_rows + 1),
        experts(num_rows * c.top_k + 1),
        weights(num_rows * c.top_k + 1) {}
  kernels::DispatchTarget target() {
    return {.rows = reinterpret_cast<std::byte*>(rows.data()),
            .route_offsets = offsets.data(),
            .route_experts = experts.data(),
            .route_weights = weights.data()};
  }
  std::vector<bf16> rows;
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> experts;
  std::vector<float> weights;
};

std::vector<float> reference_logits(const ClusterCase& c, const std::vector<float>& normed,
                                    const std::vector<bf16>& router, std::size_t num_rows) {
  std::vector<float> logits(num_rows * c.num_experts);
  for (std::size_t at = 0; at < logits.size(); ++at) {
    const float* x = normed.data() + at / c.num_experts * c.hidden_dim;
    const bf16* w = router.data() + at % c.num_experts * c.hidden_dim;
    double sum = 0.0;
    for (std::uint32_t i = 0; i < c.hidden_dim; ++i) {
      sum += static_cast<double>(x[i]) * w[i].to_float();
    }
    logits[at] = static_cast<float>(sum);
  }
  return logits;
}

}  // namespace

std::vector<float> MoeCluster::reference_layer(const LayerWeights& weights, std::uint32_t server,
                                               std::vector<float> residual) const {
  const ClusterCase& c = shape;
  const std::size_t rows = num_rows[server];
  std::vector<float> normed(residual.size());
  const std::vector<float> norm = to_floats(weights.norm);
  kernels::reference_rms_norm({.num_rows = static_cast<std::int64_t>(rows),
                               .dim = c.hidden_dim,
                               .x = residual.data(),
                               .weight = norm.data(),
                               .y = normed.data(),
                               .eps = kEps});
  const std::vector<float> logits = reference_logits(c, normed, weights.router, rows);
  std::vector<std::int32_t> experts(rows * c.top_k + 1);
  std::vector<float> route_weights(experts.size());
  kernels::reference_router({.num_rows = static_cast<std::int64_t>(rows),
                             .num_experts = c.num_experts,
                             .top_k = c.top_k,
                             .logits = logits.data(),
                             .rule = {},
                             .experts = experts.data(),
                             .weights = route_weights.data()});
  std::vector<HostTarget> hosts(c.num_ffn, HostTarget(c, rows));
  std::vector<kernels::DispatchTarget> targets;
  for (HostTarget& host : hosts) {
    targets.push_back(host.target());
  }
  std::vector<std::int32_t> row_index(c.num_ffn * rows + 1);
  require_ok(kernels::launch_dispatch({.num_rows = static_cast<std::int64_t>(rows),
                                       .hidden_dim = c.hidden_dim,
                                       .top_k = c.top_k,
                                       .hidden = normed.data(),
                                       .experts = experts.data(),
                                       .weights = route_weights.data(),
                                       .dtype = DType::kBFloat16,
                                       .placement = &placement,
                                       .attention_rank = server,
                                       .targets = targets,
                                       .row_index = row_index.data()}));
  std::vector<std::vector<float>> outputs(c.num_ffn);
  std::vector<const void*> partials(c.num_ffn * rows, nullptr);
  for (std::uint32_t rank = 0; rank < c.num_ffn; ++rank) {
    const std::uint32_t num_tokens = targets[rank].num_rows;
    outputs[rank].resize(std::size_t{num_tokens} * c.hidden_dim);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (std::size_t token = 0; token < num_tokens; ++token) {
      in.push_back(hosts[rank].rows.data() + token * c.hidden_dim);
      out.push_back(outputs[rank].data() + token * c.hidden_dim);
    }
    std::vector<kernels::ExpertWeights> local;
    for (const std::size_t expert : placement.experts_of(rank)) {
      const std::size_t at = expert * c.intermediate_dim * c.hidden_dim;
      local.push_back(kernels::ExpertWeights::pack(weights.gate.data() + at, weights.up.data() + at,
                                                   weights.down.data() + at, c.hidden_dim,
                                                   c.intermediate_dim));
    }
    kernels::reference_expert_ffn({.num_tokens = num_tokens,
                                   .hidden_dim = c.hidden_dim,
                                   .intermediate_dim = c.intermediate_dim,
                                   .token_rows = in.data(),
                                   .token_dtype = DType::kBFloat16,
                                   .route_offsets = hosts[rank].offsets.data(),
                                   .route_experts = hosts[rank].experts.data(),
                                   .route_weights = hosts[rank].weights.data(),
                                   .experts = local,
                                   .out_rows = out.data(),
                                   .out_dtype = DType::kFloat32});
    for (std::size_t i = 0; i < rows; ++i) {
      const std::int32_t at = row_index[rank * rows + i];
      partials[rank * rows + i] = at < 0 ? nullptr : out[static_cast<std::size_t>(at)];
    }
  }
  kernels::reference_combine_norm({.num_rows = static_cast<std::int64_t>(rows),
                                   .dim = c.hidden_dim,
                                   .residual = residual.data(),
                                   .num_ranks = c.num_ffn,
                                   .partials = partials.data(),
                                   .partial_dtype = DType::kFloat32,
                                   .weight = nullptr,
                                   .y = nullptr,
                                   .eps = kEps});
  return residual;
}

std::vector<std::vector<float>> MoeCluster::reference() const {
  std::vector<std::vector<float>> results = residuals;
  for (std::uint32_t server = 0; server < shape.num_attention; ++server) {
    results[server].resize(std::size_t{num_rows[server]} * shape.hidden_dim);
    for (const LayerWeights& weights : layers) {
      results[server] = reference_layer(weights, server, std::move(results[server]));
    }
  }
  return results;
}

}  // namespace fastfd::testing
