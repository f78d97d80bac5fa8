#include "attention_server/lane_runner.h"

#include <algorithm>
#include <cstring>

#include "attention_server/weights_ahead.h"
#include "kernels/embedding/op.h"
#include "kernels/gemm/op.h"
#include "kernels/norm/op.h"
#include "kernels/router/op.h"

namespace fastfd::attention_server {
namespace {

// Rows whose logits exist at one time: bounds the buffer at large vocabularies; more rows stream
// the LM head once per block.
constexpr std::uint32_t kSampleBlock = 64;

}  // namespace

LaneRunner::LaneRunner(const AttentionServerOptions& options, const model::ModelSpec& spec,
                       std::shared_ptr<const model::AttentionWeights> weights)
    : options_(options),
      spec_(spec),
      weights_(std::move(weights)),
      workers_(options.workers != nullptr
                   ? options.workers
                   : device::WorkerPool::make_if_several(options.threads, options.worker_spin)),
      stream_{.workers = workers_.get(), .isa = device::detect_isa()},
      weights_by_layer_(weights_by_layer(*weights_)),
      gated_delta_net_(options, spec),
      shared_expert_(options, spec) {
  if (spec.num_layers_of(model::AttentionKind::kFull) > 0) {
    full_attention_.emplace(options, spec);
  }
  if (spec.num_layers_of(model::AttentionKind::kLatent) > 0) {
    latent_attention_.emplace(options, spec);
  }
  const std::size_t rows = options.max_lane_rows;
  for (auto& lane : lanes_) {
    lane.residual.resize(rows * spec.hidden_dim);
  }
  normed_.resize(rows * spec.hidden_dim);
  router_logits_.resize(rows * spec.num_experts);
  experts_.resize(rows * spec.experts_per_token);
  route_weights_.resize(rows * spec.experts_per_token);
  sample_residual_.resize(rows * spec.hidden_dim);
  logits_.resize(std::min<std::size_t>(rows, kSampleBlock) * spec.vocab_size);
}

void LaneRunner::begin_epoch(transport::AttentionPort* port, const ExpertPlacement* placement,
                             const std::atomic<bool>* abort) {
  port_ = port;
  placement_ = placement;
  abort_ = abort;
  gated_delta_net_.forget_sequences();
  const std::size_t num_servers = port->num_ffn_servers();
  targets_.resize(num_servers);
  partials_.resize(num_servers * options_.max_lane_rows);
  if (spec_.has_layer(model::FfnKind::kDense)) {
    slices_ = placement->dense_slices();
    slice_weights_.assign(num_servers * options_.max_lane_rows, 1.0F);
    slice_experts_.resize(slice_weights_.size());
    for (std::size_t i = 0; i < slice_experts_.size(); ++i) {
      slice_experts_[i] = static_cast<std::int32_t>(i % num_servers);
    }
  }
  for (auto& lane : lanes_) {
    lane.window_rows.resize(num_servers * options_.max_lane_rows);
  }
}

Status LaneRunner::gemm(const float* a, std::int64_t num_rows,
                        const kernels::PackedWeights& weights, float* c,
                        const std::vector<float>& bias, Precision precision) {
  return kernels::launch_gemm({.m = num_rows,
                               .a = a,
                               .lda = weights.k(),
                               .weights = &weights,
                               .c = c,
                               .ldc = weights.n(),
                               .bias = bias.empty() ? nullptr : bias.data(),
                               .precision = precision},
                              stream_);
}

void LaneRunner::copy_pages(const LaneBatch& batch) {
  for (const PageCopy& copy : batch.copies) {
    if (full_attention_) {
      full_attention_->copy_page(copy.source, copy.target);
    }
    if (latent_attention_) {
      latent_attention_->copy_page(copy.source, copy.target);
    }
  }
}

Status LaneRunner::embed(LaneId lane, const LaneBatch& batch) {
  const bool is_tied = weights_->embedding.empty();
  return kernels::launch_embedding({.num_rows = batch.num_rows,
                                    .dim = spec_.hidden_dim,
                                    .vocab_size = spec_.vocab_size,
                                    .tokens = batch.tokens.data(),
                                    .table = weights_->embedding.data(),
                                    .packed_table = is_tied ? &weights_->lm_head : nullptr,
                                    .out = lanes_[lane].residual.data()},
                                   stream_);
}

Status LaneRunner::normalize_first(LaneId lane, const LaneBatch& batch) {
  return kernels::launch_rms_norm({.num_rows = batch.num_rows,
                                   .dim = spec_.hidden_dim,
                                   .x = lanes_[lane].residual.data(),
                                   .weight = weights_->layers[0].input_norm.data(),
                                   .y = normed_.data(),
                                   .eps = spec_.rms_eps},
                                  stream_);
}

Status LaneRunner::combine_rows(const transport::HopId& hop, std::span<const std::uint32_t> rows,
                                std::uint32_t num_rows, float* residual, const float* norm_weight,
                                float* normed) {
  const Lane& lane = lanes_[hop.lane];
  const std::size_t row_bytes = spec_.hidden_dim * dtype_bytes(options_.combine_dtype);
  const std::uint32_t num_servers = port_->num_ffn_servers();
  const auto count = static_cast<std::uint32_t>(rows.empty() ? num_rows : rows.size());
  for (ServerRank rank = 0; rank < num_servers; ++rank) {
    const std::byte* base = port_->combine_rows(rank, hop);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t row = rows.empty() ? i : rows[i];
      const std::int32_t index = lane.window_rows[std::size_t{rank} * num_rows + row];
      partials_[std::size_t{rank} * count + i] =
          index < 0 ? nullptr : base + static_cast<std::size_t>(index) * row_bytes;
    }
  }
  return kernels::launch_combine_norm({.num_rows = count,
                                       .dim = spec_.hidden_dim,
                                       .residual = residual,
                                       .num_ranks = num_servers,
                                       .partials = partials_.data(),
                                       .partial_dtype = options_.combine_dtype,
                                       .weight = norm_weight,
                                       .y = normed,
                                       .eps = spec_.rms_eps},
                                      stream_);
}

Status LaneRunner::combine(const transport::HopId& hop, const LaneBatch& batch) {
  return combine_rows(hop, {}, batch.num_rows, lanes_[hop.lane].residual.data(),
                      weights_->layers[hop.layer + 1].input_norm.data(), normed_.data());
}

Status LaneRunner::attend(const transport::HopId& hop, const LaneBatch& batch) {
  const auto& layer = weights_->layers[hop.layer];
  const AttentionRows rows{.layer = hop.layer,
                           .batch = &batch,
                           .normed = normed_.data(),
                           .residual = lanes_[hop.lane].residual.data(),
                           .stream = &stream_,
                           .abort = abort_};
  switch (spec_.layers[hop.layer].attention) {
    case model::AttentionKind::kFull:
      return full_attention_->run(rows, layer.full);
    case model::AttentionKind::kLatent:
      return latent_attention_->run(rows, layer.latent);
    case model::AttentionKind::kGatedDeltaNet:
      return gated_delta_net_.run(rows, layer.gated_delta_net);
  }
  return {StatusCode::kInternal, "a layer of an attention kind that does not exist"};
}

Status LaneRunner::normalize_for_ffn(const transport::HopId& hop, const LaneBatch& batch) {
  return kernels::launch_rms_norm({.num_rows = batch.num_rows,
                                   .dim = spec_.hidden_dim,
                                   .x = lanes_[hop.lane].residual.data(),
                                   .weight = weights_->layers[hop.layer].post_norm.data(),
                                   .y = normed_.data(),
                                   .eps = spec_.rms_eps},
                                  stream_);
}

Status LaneRunner::route(const transport::HopId& hop, const LaneBatch& batch, Routes& routes) {
  if (spec_.layers[hop.layer].ffn == model::FfnKind::kDense) {
    routes = {.per_row = port_->num_ffn_servers(),
              .experts = slice_experts_.data(),
              .weights = slice_weights_.data(),
              .placement = &slices_};
    return Status::ok();
  }
  routes = {.per_row = spec_.experts_per_token,
            .experts = experts_.data(),
            .weights = route_weights_.data(),
            .placement = placement_};
  const auto& router = weights_->layers[hop.layer].router;
  // Routes are decided in float whatever the precision: a flipped route is a different network.
  auto status = gemm(normed_.data(), batch.num_rows, router.weights, router_logits_.data(),
                     router.bias, Precision::kFloat32);
  if (status) {
    status = kernels::launch_router(
        {.num_rows = batch.num_rows,
         .num_experts = spec_.num_experts,
         .top_k = spec_.experts_per_token,
         .logits = router_logits_.data(),
         .correction_bias =
             router.correction_bias.empty() ? nullptr : router.correction_bias.data(),
         .rule = spec_.router,
         .experts = experts_.data(),
         .weights = route_weights_.data()},
        stream_);
  }
  return status;
}

Status LaneRunner::dispatch(const transport::HopId& hop, const LaneBatch& batch,
                            const Routes& routes) {
  const std::uint32_t num_servers = port_->num_ffn_servers();
  for (ServerRank rank = 0; rank < num_servers; ++rank) {
    const auto writer = port_->dispatch_buffer(rank, hop);
    targets_[rank] = {.rows = writer.rows,
                      .route_offsets = writer.route_offsets,
                      .route_experts = writer.route_experts,
                      .route_weights = writer.route_weights};
  }
  auto status = kernels::launch_dispatch({.num_rows = batch.num_rows,
                                          .hidden_dim = spec_.hidden_dim,
                                          .top_k = routes.per_row,
                                          .hidden = normed_.data(),
                                          .experts = routes.experts,
                                          .weights = routes.weights,
                                          .dtype = options_.dispatch_dtype,
                                          .placement = routes.placement,
                                          .attention_rank = options_.rank,
                                          .targets = targets_,
                                          .row_index = lanes_[hop.lane].window_rows.data()});
  if (!status) {
    return status;
  }
  if (abort_->load(std::memory_order_relaxed)) {
    return {StatusCode::kAborted, "epoch abandoned"};
  }
  for (ServerRank rank = 0; rank < num_servers; ++rank) {
    port_->send_dispatch(rank, hop, targets_[rank].num_rows, targets_[rank].num_routes);
  }
  return Status::ok();
}

Status LaneRunner::attend_and_dispatch(const transport::HopId& hop, const LaneBatch& batch) {
  Routes routes;
  auto status = attend(hop, batch);
  if (status) {
    status = normalize_for_ffn(hop, batch);
  }
  if (status) {
    status = route(hop, batch, routes);
  }
  if (status) {
    status = dispatch(hop, batch, routes);
  }
  const auto& shared = weights_->layers[hop.layer].shared;
  if (status && shared.expert.down.n() != 0) {
    status = shared_expert_.run(shared, batch.num_rows, normed_.data(),
                                lanes_[hop.lane].residual.data(), stream_, abort_);
  }
  return status;
}

Status LaneRunner::sample(const transport::HopId& hop, const LaneBatch& batch,
                          const SequenceTable& sequences,
                          std::vector<kernels::SamplingOutput>& outputs) {
  const auto num_samples = static_cast<std::uint32_t>(batch.samples.size());
  outputs.resize(num_samples);
  if (num_samples == 0) {
    return Status::ok();
  }
  const std::size_t dim = spec_.hidden_dim;
  sample_rows_.resize(num_samples);
  for (std::uint32_t i = 0; i < num_samples; ++i) {
    sample_rows_[i] = batch.samples[i].row;
    std::memcpy(&sample_residual_[i * dim], &lanes_[hop.lane].residual[sample_rows_[i] * dim],
                dim * sizeof(float));
  }
  auto status = combine_rows(hop, sample_rows_, batch.num_rows, sample_residual_.data(),
                             weights_->final_norm.data(), normed_.data());
  for (std::uint32_t first = 0; status && first < num_samples; first += kSampleBlock) {
    const std::uint32_t count = std::min(kSampleBlock, num_samples - first);
    status = gemm(&normed_[first * dim], count, weights_->lm_head, logits_.data(), {},
                  options_.precision);
    sampling_rows_.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const SampleRow& sample = batch.samples[first + i];
      const Slot& slot = sequences.slot(sample.slot);
      sampling_rows_[i] = {.logits = &logits_[std::size_t{i} * spec_.vocab_size],
                           .params = &slot.sampling,
                           .counts = slot.counts.empty() ? nullptr : &slot.counts,
                           .position = sample.position,
                           .num_generated = sample.position - slot.prompt_len};
    }
    if (status) {
      status = kernels::launch_sampling(sampling_rows_, spec_.vocab_size,
                                        std::span(outputs).subspan(first, count), stream_);
    }
  }
  return status;
}

}  // namespace fastfd::attention_server
