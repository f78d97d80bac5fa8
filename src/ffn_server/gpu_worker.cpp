#include "ffn_server/gpu_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fastfd/core/check.h"
#include "fastfd/core/row_bucket.h"
#include "fastfd/transport/window_layout.h"
#include "kernels/combine/op_cuda.h"
#include "kernels/cuda/footprint_recorder.h"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::ffn_server {
namespace {

using device::copy_async;
using device::DeviceBuffer;
namespace cuda = kernels::cuda;

// An FFN server waits as long as its attention servers are busy with other lanes or have no plan:
// only the host's abort word ends it.
constexpr std::uint64_t kWaitLimitNs = ~std::uint64_t{0} >> 1;

// The first of a staging's parts is the most aligned.
std::size_t round_up(std::size_t num_bytes) {
  constexpr std::size_t kAlignment = alignof(layout::LaneControl);
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

GpuFfnWorker::Lane::Lane(const device::GpuPart& gpu, LaneId id, const FfnServerOptions& options,
                         const model::ModelSpec& spec, const model::DeviceFfnWeights& weights,
                         Streams streams)
    : num_layers(spec.num_layers),
      staging_bytes(
          round_up(sizeof(layout::LaneControl) + sizeof(layout::AbortState) +
                   (num_layers + 1) * (sizeof(layout::HopTimes) + sizeof(std::uint32_t)))),
      ring(gpu.device(), kRingSize * staging_bytes),
      progress(gpu.device(), sizeof(std::uint64_t)) {
  const device::CudaDevice& device = gpu.device();
  if (streams == Streams::kOfItsOwn) {
    stream.emplace(gpu.make_stream(device::lane_priority(id)));
  }
  for (std::uint32_t i = 0; i < kRingSize; ++i) {
    done.emplace_back(device, device::EventOptions{.sleeps = true});
  }
  std::vector<model::DeviceFfnDims> layers;
  for (const model::DeviceFfnLayer& layer : weights.layers) {
    layers.push_back(layer.dims);
  }
  for (const Array& array : arrays(options, spec, layers)) {
    this->*array.buffer = DeviceBuffer(device, array.num_bytes);
  }
}

GpuFfnWorker::Lane::Staging GpuFfnWorker::Lane::staging(std::uint32_t entry) const {
  std::byte* memory = ring.data() + entry * staging_bytes;
  Staging staging{};
  staging.control = reinterpret_cast<layout::LaneControl*>(memory);
  staging.abort = reinterpret_cast<layout::AbortState*>(staging.control + 1);
  staging.times = reinterpret_cast<layout::HopTimes*>(staging.abort + 1);
  staging.num_rows = reinterpret_cast<std::uint32_t*>(staging.times + num_layers + 1);
  return staging;
}

cuda::RouteTables GpuFfnWorker::Lane::tables() const {
  return {.expert_begin = expert_begin.as<std::uint32_t>(),
          .route_tokens = route_tokens.as<std::uint32_t>(),
          .route_weights = route_weights.as<float>(),
          .num_tokens = num_tokens.as<std::uint32_t>(),
          .token_route_begin = token_route_begin.as<std::uint32_t>(),
          .token_routes = token_routes.as<std::uint32_t>(),
          .token_rows = token_rows.as<const void*>(),
          .token_sources = token_sources.as<cuda::TokenSource>(),
          .peer_rows = peer_rows.as<std::uint32_t>()};
}

GpuFfnWorker::GpuFfnWorker(const FfnServerOptions& options, const model::ModelSpec& spec,
                           std::shared_ptr<const model::DeviceFfnWeights> weights,
                           const device::GpuPart& gpu, Streams streams)
    : options_(options),
      spec_(spec),
      weights_(std::move(weights)),
      gpu_(gpu),
      window_shape_{.max_lane_rows = options.max_lane_rows,
                    .hidden_dim = spec.hidden_dim,
                    .max_routes_per_row = spec.max_routes_per_row(),
                    .num_layers = spec.num_layers,
                    .dispatch_dtype = options.dispatch_dtype,
                    .combine_dtype = options.combine_dtype},
      dispatch_layout_(transport::dispatch_layout(window_shape_)),
      combine_layout_(transport::combine_layout(window_shape_)),
      route_output_dtype_(route_output_dtype(options)),
      max_tokens_(options.max_lane_rows * options.num_attention_servers),
      abort_(gpu.device(), sizeof(layout::AbortState)),
      timeout_ns_(gpu.device(), sizeof(kWaitLimitNs)),
      always_ready_(gpu.device(), sizeof(std::uint32_t)),
      abort_word_(gpu.device(), sizeof(std::uint32_t)),
      dispatch_windows_(gpu.device(), options.num_attention_servers * sizeof(std::byte*)),
      combine_windows_(gpu.device(), options.num_attention_servers * sizeof(std::byte*)),
      epoch_upload_(gpu.device(), 2 * dispatch_windows_.num_bytes() + sizeof(kWaitLimitNs)) {
  if (options.dispatch_dtype != weights_->dtype) {
    throw device::DeviceError(fmt::format(
        "FFN server {}: rows are dispatched in {}, but the experts are {}; dispatch in the type of "
        "the experts",
        options.rank, to_string(options.dispatch_dtype), to_string(weights_->dtype)));
  }
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    lanes_.push_back(std::make_unique<Lane>(gpu, lane, options, spec, *weights_, streams));
  }
  if (streams == Streams::kOfItsOwn) {
    check_residency();
    capture_graphs();
  }
}

// By captures that are thrown away: kernels take other shapes in other buckets.
void GpuFfnWorker::check_residency() {
  const cuda::FootprintRecorder recorder;
  Status status;
  for (const std::uint32_t bucket : typical_rows_up_to(max_tokens_)) {
    if (status) {
      const auto graph = device::DeviceGraph::capture(*lanes_[0]->stream,
                                                      [&] { return run({.lane = 0}, bucket); });
      status = graph.status();
    }
  }
  if (status) {
    status = recorder.check_residency(device::sm_limits(gpu_.device()), gpu_.num_sms(),
                                      kMaxLanes * gpu_.num_servers());
  }
  if (status) {
    status = device::check_queues();
  }
  if (!status) {
    throw device::DeviceError("FFN server: " + status.message());
  }
}

void GpuFfnWorker::capture_graphs() {
  for (LaneId id = 0; id < kMaxLanes; ++id) {
    Lane& lane = *lanes_[id];
    for (const std::uint32_t rounded :
         row_buckets_up_to(std::min(options_.max_graph_rows, max_tokens_))) {
      const std::uint32_t bucket = std::min(rounded, max_tokens_);
      auto graph =
          device::DeviceGraph::capture(*lane.stream, [&] { return run({.lane = id}, bucket); });
      if (!graph) {
        throw device::DeviceError("capturing a step: " + graph.status().message());
      }
      lane.graphs.emplace(bucket, std::move(graph).value());
    }
  }
}

Status GpuFfnWorker::begin_epoch(transport::DevicePort& port, const device::DeviceStream& on) {
  port_ = &port;
  check(port.windows().receive.size() == options_.num_attention_servers,
        "windows of another number of attention servers");
  check(port.shape() == window_shape_, "windows of another shape");
  const device::CudaStream stream = on.handle();
  auto put = [&, at = epoch_upload_.data()](const DeviceBuffer& to, const void* from) mutable {
    std::memcpy(at, from, to.num_bytes());
    auto status = copy_async(to.data(), at, to.num_bytes(), stream);
    at += to.num_bytes();
    return status;
  };
  auto status = put(timeout_ns_, &kWaitLimitNs);
  if (status) {
    status = put(dispatch_windows_, port.windows().receive.data());
  }
  if (status) {
    status = put(combine_windows_, port.windows().send.data());
  }
  if (status) {
    status = device::fill_async(abort_.data(), 0, abort_.num_bytes(), stream);
  }
  if (status) {
    status = device::fill_async(always_ready_.data(), 1, always_ready_.num_bytes(), stream);
  }
  // Each on its own stream, so that none runs for the first time while others' kernels wait.
  for (auto& lane : lanes_) {
    const device::CudaStream of_lane = lane->stream ? lane->stream->handle() : stream;
    if (status) {
      status = device::fill_async(lane->ctas_done.data(), 0, lane->ctas_done.num_bytes(), of_lane);
    }
  }
  if (status) {
    status = on.synchronize();
  }
  return status ? synchronize() : status;
}

Status GpuFfnWorker::run_layer(const FfnLanePlan& plan, const layout::LaneHop& hop,
                               std::uint32_t bucket) {
  Lane& lane = *lanes_[plan.lane];
  auto* control = lane.control.as<layout::LaneControl>();
  auto* abort = abort_.as<layout::AbortState>();
  Status status;
  if (port_ != nullptr) {
    status = port_->receive_dispatch(hop, plan, lane.stream->handle());
  }
  if (status) {
    status = cuda::launch_wait({.control = control,
                                .hop = hop,
                                .windows = dispatch_windows_.as<const std::byte*>(),
                                .num_peers = options_.num_attention_servers,
                                .grid = dispatch_layout_.grid,
                                .participants_only = true,
                                .timeout_ns = timeout_ns_.as<std::uint64_t>(),
                                .abort_word = abort_word(),
                                .ready = lane.ready.as<std::uint32_t>(),
                                .abort = abort,
                                .progress = lane.progress_word(),
                                .times = lane.times.as<layout::HopTimes>() + hop.layer,
                                .num_rows = lane.arrived_rows.as<std::uint32_t>() + hop.layer},
                               lane.stream->handle());
  }
  if (status) {
    status = answer(lane, hop, bucket, {control, lane.ready.as<std::uint32_t>(), abort},
                    lane.stream->handle());
  }
  if (status && port_ != nullptr) {
    status = port_->send_combine(hop, plan, lane.stream->handle());
  }
  return status;
}

Status GpuFfnWorker::answer(const Lane& lane, const layout::LaneHop& hop, std::uint32_t bucket,
                            const HopState& state, device::CudaStream stream) {
  const auto tables = lane.tables();
  const model::DeviceFfnLayer& layer = weights_->layers[hop.layer];
  const std::uint32_t max_routes = bucket * layer.dims.routes_per_token;
  auto status = cuda::launch_index({.control = state.control,
                                    .hop = hop,
                                    .ready = state.ready,
                                    .windows = dispatch_windows_.as<std::byte*>(),
                                    .num_peers = options_.num_attention_servers,
                                    .window = dispatch_layout_,
                                    .num_experts = layer.dims.num_experts,
                                    .max_tokens = bucket,
                                    .max_routes = max_routes,
                                    .tables = tables,
                                    .abort = state.abort},
                                   stream);
  const cuda::ExpertFfnParams experts{
      .num_experts = layer.dims.num_experts,
      .hidden_dim = spec_.hidden_dim,
      .intermediate_dim = layer.dims.intermediate_dim,
      .max_routes = max_routes,
      .routes = tables.expert_routes(),
      .weights = layer.weights,
      .token_rows = lane.token_rows.as<const void*>(),
      .hidden = lane.hidden.data(),
      .hidden_scales = lane.hidden_scales.as<float>(),
      .route_outputs = lane.outputs.data(),
      .output_dtype = route_output_dtype_,
      .num_ctas = gpu_.is_whole() ? 0 : static_cast<int>(gpu_.num_sms())};
  if (status) {
    status = cuda::launch_expert_gate_up(experts, stream);
  }
  if (status) {
    status = cuda::launch_expert_down(experts, stream);
  }
  if (status) {
    status = cuda::launch_combine_send({.control = state.control,
                                        .hop = hop,
                                        .max_tokens = bucket,
                                        .hidden_dim = spec_.hidden_dim,
                                        .routes = tables.routes_by_token(),
                                        .route_weights = tables.route_weights,
                                        .num_tokens = tables.num_tokens,
                                        .token_sources = tables.token_sources,
                                        .peer_rows = tables.peer_rows,
                                        .route_outputs = lane.outputs.data(),
                                        .output_dtype = route_output_dtype_,
                                        .windows = combine_windows_.as<std::byte*>(),
                                        .num_peers = options_.num_attention_servers,
                                        .window = combine_layout_,
                                        .combine_dtype = options_.combine_dtype,
                                        .ctas_done = lane.ctas_done.as<std::uint32_t>(),
                                        .abort = state.abort},
                                       stream);
  }
  return status;
}

Status GpuFfnWorker::run_inline(const Inline& run) {
  const Lane& lane = *lanes_[run.hop.lane];
  HopState state = run.state;
  state.ready = always_ready_.as<std::uint32_t>();
  Status status;
  if (run.waits) {
    state.ready = lane.ready.as<std::uint32_t>();
    status = cuda::launch_wait({.control = state.control,
                                .hop = run.hop,
                                .windows = dispatch_windows_.as<const std::byte*>(),
                                .num_peers = options_.num_attention_servers,
                                .grid = dispatch_layout_.grid,
                                .participants_only = true,
                                .timeout_ns = timeout_ns_.as<std::uint64_t>(),
                                .abort_word = run.abort_word,
                                .ready = lane.ready.as<std::uint32_t>(),
                                .abort = state.abort,
                                .times = run.times},
                               run.stream);
  }
  const std::uint32_t bucket = std::min(run.bucket, max_tokens_);
  return status ? answer(lane, run.hop, bucket, state, run.stream) : status;
}

Result<GpuFfnWorker::Outcome> GpuFfnWorker::enqueue(Epoch epoch, StepId step,
                                                    const FfnLanePlan& plan) {
  check(plan.lane < kMaxLanes, "plan names a lane that does not exist");
  Lane& lane = *lanes_[plan.lane];
  const std::uint32_t entry = lane.next_entry;
  const device::DeviceEvent& done = lane.done[entry];
  lane.next_entry = (entry + 1) % kRingSize;
  if (lane.num_steps++ >= kRingSize) {
    if (auto status = done.synchronize(); !status) {
      return status;
    }
  }
  const Lane::Staging staging = lane.staging(entry);
  *staging.control = {};
  staging.control->step = step;
  staging.control->epoch = epoch;
  staging.control->participants = plan.participants;
  const device::CudaStream stream = lane.stream->handle();
  auto status = copy_async(lane.control.data(), staging.control, sizeof(*staging.control), stream);
  if (status) {
    status = replay_or_run(plan);
  }
  const auto fetch = [&](auto* to, const DeviceBuffer& from) {
    return status ? copy_async(to, from.data(), from.num_bytes(), stream) : status;
  };
  status = fetch(staging.times, lane.times);
  status = fetch(staging.num_rows, lane.arrived_rows);
  status = fetch(staging.abort, abort_);
  if (status) {
    status = done.record(stream);
  }
  if (!status) {
    return status;
  }
  return Outcome{&done, staging.times, staging.num_rows, staging.abort};
}

Status GpuFfnWorker::replay_or_run(const FfnLanePlan& plan) {
  Lane& lane = *lanes_[plan.lane];
  const std::uint32_t bucket = std::min(plan.row_bucket, max_tokens_);
  if (!plan.use_graph) {
    return run(plan, bucket);
  }
  check(port_->allows_graphs(), "a plan asks for graphs that the transport does not allow");
  const auto graph = lane.graphs.find(bucket);
  if (graph == lane.graphs.end()) {
    return {StatusCode::kInternal,
            fmt::format("the plan of lane {} asks for a graph of {} rows, which was not captured",
                        plan.lane, bucket)};
  }
  return graph->second.launch(lane.stream->handle());
}

Status GpuFfnWorker::run(const FfnLanePlan& plan, std::uint32_t bucket) {
  Lane& lane = *lanes_[plan.lane];
  layout::HopTimes* step_times = lane.times.as<layout::HopTimes>() + spec_.num_layers;
  auto status = cuda::launch_stamp(&step_times->begin_ns, lane.stream->handle());
  for (std::uint32_t layer = 0; status && layer < spec_.num_layers; ++layer) {
    status = run_layer(plan, {.lane = plan.lane, .layer = layer, .num_layers = spec_.num_layers},
                       bucket);
  }
  return status ? cuda::launch_stamp(&step_times->end_ns, lane.stream->handle()) : status;
}

Status GpuFfnWorker::synchronize() const {
  Status status;
  for (const auto& lane : lanes_) {
    const auto done = lane->stream ? lane->stream->synchronize() : Status::ok();
    status = status ? done : status;
  }
  return status;
}

}  // namespace fastfd::ffn_server
