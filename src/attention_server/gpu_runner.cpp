#include "attention_server/gpu_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "attention_server/gpu_setup.h"
#include "fastfd/core/check.h"
#include "fastfd/core/row_bucket.h"
#include "fastfd/transport/window_layout.h"
#include "kernels/combine/op_cuda.h"
#include "kernels/cuda/footprint_recorder.h"
#include "kernels/embedding/op_cuda.h"
#include "kernels/gemm/op_cuda.h"
#include "kernels/norm/op_cuda.h"
#include "kernels/swiglu/op_cuda.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::attention_server {
namespace {

using device::copy_async;
using device::DeviceBuffer;
namespace cuda = kernels::cuda;

// Steps in flight (plan_ahead 3 at most, and one more), and one being filled.
constexpr std::uint32_t kRingSize = 5;
// Longer than any healthy step: who is hung is the coordinator's to say, this only ends what nobody
// will ever answer.
constexpr std::uint64_t kWaitLimitNs = 60'000'000'000ULL;

}  // namespace

GpuRunner::GpuRunner(const AttentionServerOptions& options, const model::ModelSpec& spec,
                     std::shared_ptr<const model::DeviceAttentionWeights> weights,
                     const device::GpuPart& gpu, InlineExperts* experts)
    : options_(options),
      spec_(spec),
      weights_(std::move(weights)),
      gpu_(gpu),
      experts_(experts),
      window_shape_{.max_lane_rows = options.max_lane_rows,
                    .hidden_dim = spec.hidden_dim,
                    .max_routes_per_row = spec.max_routes_per_row(),
                    .num_layers = spec.num_layers,
                    .dispatch_dtype = options.dispatch_dtype,
                    .combine_dtype = options.combine_dtype},
      dispatch_layout_(transport::dispatch_layout(window_shape_)),
      combine_layout_(transport::combine_layout(window_shape_)),
      pages_per_slot_(pages_per_slot(options)),
      piece_order_(gpu.device(), spec.num_layers),
      abort_word_(gpu.device(), sizeof(std::uint32_t)),
      history_bytes_(history_bytes(options)) {
  const device::CudaDevice& device = gpu.device();
  for (const Array& array : arrays(options, spec)) {
    this->*array.buffer = DeviceBuffer(device, array.num_bytes);
  }
  epoch_upload_ = device::PinnedBuffer(
      device, placement_.num_bytes() + slices_.num_bytes() + 2 * dispatch_windows_.num_bytes());
  histories_ = device::PinnedBuffer(device, histories_on_device_.num_bytes());
  for (std::uint32_t i = 0; i < kNumHistories; ++i) {
    history_done_.emplace_back(device);
  }
  GpuLaneShape shape = lane_shape(options, spec);
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    shape.priority = device::lane_priority(lane);
    lanes_.push_back(std::make_unique<GpuLane>(gpu, spec, shape));
  }
  const device::DeviceStream& stream = lanes_[0]->device_stream();
  full_attention_.emplace(options, spec, gpu, stream);
  latent_attention_.emplace(options, spec, gpu, stream);
  gated_delta_net_.emplace(options, spec, device);
  upload_once(timeout_ns_, device, stream, std::vector<std::uint64_t>{kWaitLimitNs});
  check_residency();
  capture_graphs();
}

GpuLaneShape GpuRunner::lane_shape(const AttentionServerOptions& options,
                                   const model::ModelSpec& spec) {
  return {.max_rows = options.max_lane_rows,
          .max_spans = std::min(options.max_lane_rows, options.num_slots),
          .max_context = options.max_model_len,
          .max_page_updates = std::size_t{options.num_slots} * pages_per_slot(options),
          .num_servers = options.num_ffn_servers,
          .num_layers = spec.num_layers,
          .priority = {},  // of each lane its own
          .ring_size = kRingSize};
}

// By captures that are thrown away: kernels take other shapes in other buckets.
void GpuRunner::check_residency() {
  const cuda::FootprintRecorder recorder;
  for (const std::uint32_t bucket : typical_rows_up_to(options_.max_lane_rows)) {
    const auto graph = device::DeviceGraph::capture(lanes_[0]->device_stream(), [&] {
      return run(0, bucket, max_samples_of(bucket), /*has_pieces=*/false);
    });
    require(graph.status(), "capturing a step");
  }
  require(recorder.check_residency(device::sm_limits(gpu_.device()), gpu_.num_sms(),
                                   kMaxLanes * gpu_.num_servers()),
          "attention server");
  require(device::check_queues(), "attention server");
}

void GpuRunner::capture_graphs() {
  const std::uint32_t max_rows = std::min(options_.max_graph_rows, options_.max_lane_rows);
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    for (const std::uint32_t rounded : row_buckets_up_to(max_rows)) {
      const std::uint32_t bucket = std::min(rounded, options_.max_lane_rows);
      auto graph = device::DeviceGraph::capture(lanes_[lane]->device_stream(), [&] {
        return run(lane, bucket, max_samples_of(bucket), /*has_pieces=*/false);
      });
      require(graph.status(), "capturing a step");
      graphs_[lane].emplace(bucket, std::move(graph).value());
    }
  }
}

std::uint32_t GpuRunner::max_samples_of(std::uint32_t bucket) const {
  return std::min(bucket, options_.num_slots);
}

Status GpuRunner::begin_epoch(transport::DevicePort& port, const ExpertPlacement& placement) {
  port_ = &port;
  check(port.windows().send.size() == options_.num_ffn_servers,
        "windows of another number of FFN servers");
  check(port.shape() == window_shape_, "windows of another shape");
  auto* targets = epoch_upload_.as<ExpertPlacement::Target>();
  for (std::uint32_t expert = 0; expert < spec_.num_experts; ++expert) {
    targets[expert] = placement.target(expert, options_.rank);
  }
  std::byte* slices = epoch_upload_.data() + placement_.num_bytes();
  const ExpertPlacement dense = placement.dense_slices();
  for (std::uint32_t slice = 0; slice < options_.num_ffn_servers; ++slice) {
    reinterpret_cast<ExpertPlacement::Target*>(slices)[slice] = dense.target(slice, options_.rank);
  }
  std::byte* send = slices + slices_.num_bytes();
  std::byte* receive = send + dispatch_windows_.num_bytes();
  std::memcpy(send, port.windows().send.data(), dispatch_windows_.num_bytes());
  std::memcpy(receive, port.windows().receive.data(), combine_windows_.num_bytes());
  const device::CudaStream stream = lanes_[0]->stream();
  auto status = copy_async(placement_.data(), targets, placement_.num_bytes(), stream);
  if (status) {
    status = copy_async(slices_.data(), slices, slices_.num_bytes(), stream);
  }
  if (status) {
    status = copy_async(dispatch_windows_.data(), send, dispatch_windows_.num_bytes(), stream);
  }
  if (status) {
    status = copy_async(combine_windows_.data(), receive, combine_windows_.num_bytes(), stream);
  }
  if (status) {
    status = device::fill_async(abort_.data(), 0, abort_.num_bytes(), stream);
  }
  piece_order_.reset();
  gated_delta_net_->reset();
  for (auto& lane : lanes_) {
    if (status) {
      status = lane->reset();
    }
  }
  return status && experts_ != nullptr ? experts_->begin_epoch(lanes_[0]->device_stream()) : status;
}

Status GpuRunner::attend(LaneId lane_id, std::uint32_t layer, std::uint32_t bucket,
                         bool has_pieces) {
  const GpuAttentionRows rows{.lane = lanes_[lane_id].get(),
                              .lane_id = lane_id,
                              .layer = layer,
                              .bucket = bucket,
                              .has_pieces = has_pieces,
                              .order = &piece_order_,
                              .page_tables = page_tables_.as<PageId>(),
                              .pages_per_slot = pages_per_slot_,
                              .abort = abort_state()};
  const auto& weights = weights_->layers[layer];
  switch (spec_.layers[layer].attention) {
    case model::AttentionKind::kFull:
      return full_attention_->run(rows, weights.full);
    case model::AttentionKind::kGatedDeltaNet:
      return gated_delta_net_->run(rows, weights.gated_delta_net);
    case model::AttentionKind::kLatent:
      return latent_attention_->run(rows, weights.latent);
  }
  return {StatusCode::kInternal,
          fmt::format("layer {} has attention that GPUs don't compute", layer)};
}

cuda::RouterParams GpuRunner::router_of(std::uint32_t layer) const {
  if (spec_.layers[layer].ffn == model::FfnKind::kDense) {
    return {.scoring = cuda::RouterScoring::kAll,
            .num_experts = options_.num_ffn_servers,
            .top_k = options_.num_ffn_servers};
  }
  const auto& weights = weights_->layers[layer];
  const bool is_sigmoid = spec_.router.scoring == kernels::RouterScoring::kSigmoid;
  return {.scoring = is_sigmoid ? cuda::RouterScoring::kSigmoid : cuda::RouterScoring::kSoftmax,
          .num_experts = spec_.num_experts,
          .top_k = spec_.experts_per_token,
          .renormalize = spec_.router.renormalize,
          .scaling_factor = spec_.router.scaling_factor,
          .num_groups = spec_.router.num_groups,
          .top_groups = spec_.router.top_groups,
          .group_score = spec_.router.group_score,
          .weights = weights.router,
          .correction_bias = weights.correction_bias};
}

Status GpuRunner::run_shared_expert(LaneId lane_id, std::uint32_t layer, std::uint32_t bucket) {
  GpuLane& lane = *lanes_[lane_id];
  const auto& weights = weights_->layers[layer];
  const std::int64_t hidden = spec_.hidden_dim;
  const std::int64_t intermediate = spec_.shared_intermediate_dim;
  auto status = project(lane, bucket,
                        {.n = 2 * intermediate,
                         .k = hidden,
                         .a = lane.normed(),
                         .weights = weights.shared_gate_up,
                         .c = lane.shared_gate_up()});
  if (status) {
    status = cuda::launch_swiglu({.max_rows = bucket,
                                  .control = lane.control(),
                                  .intermediate_dim = intermediate,
                                  .gate_up = lane.shared_gate_up(),
                                  .hidden = lane.shared_hidden(),
                                  .input_dim = hidden,
                                  .input = lane.normed(),
                                  .weight_project = weights.shared_gate},
                                 lane.stream());
  }
  return status ? project(lane, bucket,
                          {.n = hidden,
                           .k = intermediate,
                           .a = lane.shared_hidden(),
                           .weights = weights.shared_down,
                           .c = lane.residual(),
                           .output = cuda::GemmOutput::kAddFloat32})
                : status;
}

Status GpuRunner::dispatch(LaneId lane_id, std::uint32_t layer, std::uint32_t bucket) {
  GpuLane& lane = *lanes_[lane_id];
  const auto& weights = weights_->layers[layer];
  const layout::LaneHop hop{.lane = lane_id, .layer = layer, .num_layers = spec_.num_layers};
  const bool is_dense = spec_.layers[layer].ffn == model::FfnKind::kDense;
  const bool has_shared = weights.shared_gate_up != nullptr;
  auto status = cuda::launch_dispatch(
      {.control = lane.control(),
       .hop = hop,
       .max_rows = bucket,
       .hidden_dim = spec_.hidden_dim,
       .residual = lane.residual(),
       .norm = {.values = weights.post_norm, .dtype = DType::kFloat32, .eps = spec_.rms_eps},
       .router = router_of(layer),
       .placement = (is_dense ? slices_ : placement_).as<ExpertPlacement::Target>(),
       .windows = dispatch_windows_.as<std::byte*>(),
       .num_servers = options_.num_ffn_servers,
       .window = dispatch_layout_,
       .row = {spec_.hidden_dim, options_.dispatch_dtype},
       .row_index = lane.row_index(),
       .sent_rows = lane.sent_rows(),
       .normed = has_shared ? lane.normed() : nullptr,
       .partial_logits = lane.partial_logits(),
       .counters = lane.counters(),
       .abort = abort_.as<layout::AbortState>()},
      lane.stream());
  if (status && experts_ != nullptr) {
    status = experts_->run({.hop = hop,
                            .bucket = bucket,
                            .control = lane.control(),
                            .abort = abort_state(),
                            .abort_word = abort_word(),
                            .times = lane.times() + std::size_t{layer} * waits_per_layer(),
                            .stream = lane.stream()});
  }
  if (status && experts_ == nullptr && port_ != nullptr) {
    status = port_->send_dispatch(hop, bucket, lane.stream());
  }
  return status && has_shared ? run_shared_expert(lane_id, layer, bucket) : status;
}

Status GpuRunner::receive(LaneId lane_id, std::uint32_t layer, std::uint32_t bucket, bool sampled,
                          std::uint32_t max_samples) {
  GpuLane& lane = *lanes_[lane_id];
  const layout::LaneHop hop{.lane = lane_id, .layer = layer, .num_layers = spec_.num_layers};
  const bool is_last = layer + 1 == spec_.num_layers;
  Status status;
  if (experts_ == nullptr && port_ != nullptr) {
    status = port_->receive_combine(hop, bucket, lane.stream());
  }
  if (status && waits_per_layer() > 0) {
    status = cuda::launch_wait(
        {.control = lane.control(),
         .hop = hop,
         .windows = combine_windows_.as<const std::byte*>(),
         .num_peers = options_.num_ffn_servers,
         .grid = combine_layout_.grid,
         .participants_only = false,
         .expected_rows = lane.sent_rows(),
         .timeout_ns = timeout_ns_.as<std::uint64_t>(),
         .abort_word = abort_word(),
         .ready = lane.ready(),
         .abort = abort_.as<layout::AbortState>(),
         .progress = lane.progress_word(),
         .times = lane.times() + (std::size_t{layer} + 1) * waits_per_layer() - 1},
        lane.stream());
  }
  if (!status) {
    return status;
  }
  const float* norm = is_last ? weights_->final_norm : weights_->layers[layer + 1].input_norm;
  return cuda::launch_combine_receive(
      {.control = lane.control(),
       .hop = hop,
       .max_rows = bucket,
       .hidden_dim = spec_.hidden_dim,
       .residual = lane.residual(),
       .windows = combine_windows_.as<const std::byte*>(),
       .num_servers = options_.num_ffn_servers,
       .window = combine_layout_,
       .combine_dtype = options_.combine_dtype,
       .row_index = lane.row_index(),
       .norm = {.values = norm, .dtype = DType::kFloat32, .eps = spec_.rms_eps},
       .y = lane.normed(),
       .samples = sampled ? lane.samples() : nullptr,
       .max_samples = max_samples,
       .abort = abort_.as<layout::AbortState>()},
      lane.stream());
}

Status GpuRunner::sample(LaneId lane_id, std::uint32_t bucket, std::uint32_t max_samples) {
  GpuLane& lane = *lanes_[lane_id];
  auto status = receive(lane_id, spec_.num_layers - 1, bucket, /*sampled=*/true, max_samples);
  if (status) {
    status = cuda::launch_gemm({.max_rows = max_samples,
                                .num_rows = &lane.control()->num_samples,
                                .n = spec_.vocab_size,
                                .k = spec_.hidden_dim,
                                .a = lane.normed(),
                                .lda = spec_.hidden_dim,
                                .weights = weights_->lm_head,
                                .c = lane.logits(),
                                .ldc = spec_.vocab_size,
                                .output = cuda::GemmOutput::kFloat32},
                               lane.stream());
  }
  if (status) {
    status = cuda::launch_sampling({.max_samples = max_samples,
                                    .vocab_size = spec_.vocab_size,
                                    .control = lane.control(),
                                    .abort = abort_.as<layout::AbortState>(),
                                    .samples = lane.samples(),
                                    .logits = lane.logits(),
                                    .adjusted = lane.adjusted_logits(),
                                    .slots = slot_sampling_.as<cuda::SlotSampling>(),
                                    .logit_biases = logit_biases_.as<cuda::LogitBias>(),
                                    .stop_tokens = stop_tokens_.as<TokenId>(),
                                    .token_counts = token_counts_.as<std::uint32_t>(),
                                    .last_tokens = last_tokens_.as<TokenId>(),
                                    .results = lane.results()},
                                   lane.stream());
  }
  return status;
}

Status GpuRunner::run(LaneId lane_id, std::uint32_t bucket, std::uint32_t max_samples,
                      bool has_pieces) {
  GpuLane& lane = *lanes_[lane_id];
  layout::HopTimes* step_times = lane.step_times();
  auto status = cuda::launch_stamp(&step_times->begin_ns, lane.stream());
  if (status) {
    status = cuda::launch_embedding({.max_rows = bucket,
                                     .dim = spec_.hidden_dim,
                                     .vocab_size = spec_.vocab_size,
                                     .control = lane.control(),
                                     .rows = lane.rows(),
                                     .last_tokens = last_tokens_.as<TokenId>(),
                                     .table = weights_->embedding,
                                     .out = lane.residual()},
                                    lane.stream());
  }
  if (status) {
    status = cuda::launch_attention_schedule(
        {.workspace = lane.workspace(), .control = lane.control(), .spans = lane.spans()},
        lane.stream());
  }
  if (status) {
    status = cuda::launch_rms_norm({.max_rows = bucket,
                                    .dim = spec_.hidden_dim,
                                    .control = lane.control(),
                                    .x = lane.residual(),
                                    .weight = weights_->layers[0].input_norm,
                                    .y = lane.normed(),
                                    .eps = spec_.rms_eps},
                                   lane.stream());
  }
  for (std::uint32_t layer = 0; status && layer < spec_.num_layers; ++layer) {
    if (layer > 0) {
      status = receive(lane_id, layer - 1, bucket, /*sampled=*/false, 0);
    }
    if (status) {
      status = attend(lane_id, layer, bucket, has_pieces);
    }
    if (status) {
      status = dispatch(lane_id, layer, bucket);
    }
  }
  if (status) {
    status = sample(lane_id, bucket, max_samples);
  }
  return status ? cuda::launch_stamp(&step_times->end_ns, lane.stream()) : status;
}

Status GpuRunner::enqueue(LaneId lane_id, const LaneBatch& batch, const SequenceTable& sequences,
                          const layout::LaneControl& control, const Shape& shape) {
  GpuLane& lane = *lanes_[lane_id];
  Status status;
  for (LaneId other = 0; shape.barrier && status && other < kMaxLanes; ++other) {
    if (other != lane_id) {
      status = lane.device_stream().wait(lanes_[other]->done());
    }
  }
  if (status) {
    status = lane.upload(batch, control);
  }
  if (status) {
    status = apply_plan(lane, batch, sequences);
  }
  const bool has_pieces = std::any_of(batch.tokens.begin(), batch.tokens.end(),
                                      [](TokenId token) { return token != kNoToken; });
  if (status && has_pieces) {
    status = piece_order_.begin(lane_id, lane.device_stream());
  }
  if (status) {
    status = gated_delta_net_->advance(batch);
  }
  if (!status) {
    return status;
  }
  const std::uint32_t bucket = std::min(shape.bucket, options_.max_lane_rows);
  if (shape.use_graph) {
    check(port_->allows_graphs(), "a plan asks for graphs that the transport does not allow");
    const auto graph = graphs_[lane_id].find(bucket);
    if (graph == graphs_[lane_id].end()) {
      return {StatusCode::kInternal,
              fmt::format("the plan of lane {} asks for a graph of {} rows, which was not captured",
                          lane_id, bucket)};
    }
    status = graph->second.launch(lane.stream());
  } else {
    const auto num_samples = static_cast<std::uint32_t>(batch.samples.size());
    status = run(lane_id, bucket, std::max(num_samples, 1U), has_pieces);
  }
  GpuLaneStaging& staging = lane.staging();
  if (status && !batch.samples.empty()) {
    status = copy_async(staging.results, lane.results(),
                        batch.samples.size() * sizeof(*staging.results), lane.stream());
  }
  if (status) {
    status = copy_async(staging.times, lane.times(), lane.num_times() * sizeof(*staging.times),
                        lane.stream());
  }
  if (status) {
    status = copy_async(staging.abort, abort_.data(), sizeof(*staging.abort), lane.stream());
  }
  return status ? lane.done().record(lane.stream()) : status;
}

Status GpuRunner::synchronize() const {
  Status status;
  for (const auto& lane : lanes_) {
    const auto done = lane->device_stream().synchronize();
    status = status ? done : status;
  }
  return status;
}

}  // namespace fastfd::attention_server
