#include "ffn_server/ffn_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "fastfd/core/check.h"

namespace fastfd::ffn_server {
namespace {

// Routes decide which of many experts are read; fetching others would only push them out.
std::vector<device::MemoryRanges> weights_by_layer(const model::FfnWeights& weights) {
  const std::size_t max_bytes = device::cache_fetch_bytes();
  std::vector<device::MemoryRanges> by_layer;
  for (const auto& layer : weights.layers) {
    device::MemoryRanges ranges;
    std::size_t num_bytes = 0;
    for (const auto& expert : layer.experts) {
      for (const auto* matrix : {&expert.gate_up, &expert.down}) {
        ranges.push_back(matrix->bytes());
        num_bytes += matrix->num_bytes();
      }
    }
    const bool is_known = layer.experts.size() == 1 || num_bytes <= max_bytes;
    by_layer.push_back(device::first_bytes(is_known ? ranges : device::MemoryRanges{}, max_bytes));
  }
  return by_layer;
}

}  // namespace

FfnWorker::FfnWorker(const FfnServerOptions& options, const model::ModelSpec& spec,
                     std::shared_ptr<const model::FfnWeights> weights)
    : options_(options),
      num_layers_(spec.num_layers),
      hidden_dim_(spec.hidden_dim),
      max_routes_per_row_(spec.max_routes_per_row()),
      weights_(std::move(weights)),
      workers_(options.workers != nullptr
                   ? options.workers
                   : device::WorkerPool::make_if_several(options.threads, options.worker_spin)),
      stream_{.workers = workers_.get(), .isa = device::detect_isa()},
      weights_by_layer_(weights_by_layer(*weights_)) {
  const std::size_t max_tokens = std::size_t{options.max_lane_rows} * options.num_attention_servers;
  token_rows_.resize(max_tokens);
  out_rows_.resize(max_tokens);
  route_offsets_.resize(max_tokens + 1);
  route_experts_.resize(max_tokens * max_routes_per_row_);
  route_weights_.resize(max_tokens * max_routes_per_row_);
}

void FfnWorker::begin_epoch(Epoch epoch, transport::FfnPort* port, const std::atomic<bool>* abort) {
  epoch_ = epoch;
  port_ = port;
  abort_ = abort;
  progress_.reset();
  for (auto& lane : lanes_) {
    lane = {};
  }
}

void FfnWorker::add_plan(const FfnStepPlan& plan) {
  for (const FfnLanePlan& lane : plan.lanes) {
    check(lane.lane < kMaxLanes, "plan names a lane that does not exist");
    check(lane.participants >> (options_.num_attention_servers - 1) >> 1U == 0,
          "plan names an attention server that does not exist");
    lanes_[lane.lane].steps.push_back({plan.step, lane.participants});
  }
}

bool FfnWorker::has_work() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.steps.empty(); });
}

transport::HopId FfnWorker::hop(LaneId lane) const {
  return {.epoch = epoch_,
          .step = lanes_[lane].steps.front().step,
          .layer = lanes_[lane].layer,
          .lane = lane};
}

// The furthest behind first: its attention server waits longest.
template <typename Accept>
std::optional<LaneId> FfnWorker::furthest_behind(Accept accept) const {
  const auto place = [this](LaneId id) {
    return std::tuple(lanes_[id].steps.front().step, lanes_[id].layer);
  };
  std::optional<LaneId> best;
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    if (!lanes_[lane].steps.empty() && (!best || place(lane) < place(*best)) && accept(lane)) {
      best = lane;
    }
  }
  return best;
}

std::optional<LaneId> FfnWorker::pick_ready() const {
  return furthest_behind([this](LaneId lane) {
    return port_->dispatch_ready(hop(lane), lanes_[lane].steps.front().participants);
  });
}

std::optional<LaneId> FfnWorker::pick_next() const {
  return furthest_behind([](LaneId) { return true; });
}

Result<FfnWorker::Outcome> FfnWorker::run_ready() {
  const auto lane = pick_ready();
  if (!lane) {
    return Outcome::kNothingReady;
  }
  if (auto status = run(*lane); !status) {
    return status;
  }
  return Outcome::kRan;
}

Status FfnWorker::gather(const transport::HopId& id, ServerMask participants) {
  const std::size_t in_bytes = hidden_dim_ * dtype_bytes(options_.dispatch_dtype);
  const std::size_t out_bytes = hidden_dim_ * dtype_bytes(options_.combine_dtype);
  num_tokens_ = 0;
  std::uint32_t num_routes = 0;
  route_offsets_[0] = 0;
  for (ServerRank rank = 0; rank < options_.num_attention_servers; ++rank) {
    if ((participants >> rank & 1U) == 0) {
      continue;
    }
    const transport::DispatchReader in = port_->dispatch(rank, id);
    if (!in.valid) {
      return {StatusCode::kInternal,
              fmt::format("attention server {} dispatched {} rows with {} routes in step {} layer "
                          "{} lane {}; a lane holds {} rows",
                          rank, in.num_rows, in.num_routes, id.step, id.layer, id.lane,
                          options_.max_lane_rows)};
    }
    rows_of_[rank] = in.num_rows;
    std::byte* out = port_->combine_buffer(rank, id);
    for (std::uint32_t row = 0; row < in.num_rows; ++row) {
      const std::uint32_t first = in.route_offsets[row];
      const std::uint32_t last = in.route_offsets[row + 1];
      if (first > last || last > in.num_routes || last - first > max_routes_per_row_) {
        return {StatusCode::kInternal,
                fmt::format("attention server {} dispatched row {} with routes {}..{} of {}", rank,
                            row, first, last, in.num_routes)};
      }
      token_rows_[num_tokens_] = in.rows + row * in_bytes;
      out_rows_[num_tokens_] = out + row * out_bytes;
      std::copy(in.route_experts + first, in.route_experts + last, &route_experts_[num_routes]);
      std::copy(in.route_weights + first, in.route_weights + last, &route_weights_[num_routes]);
      num_routes += last - first;
      route_offsets_[++num_tokens_] = num_routes;
    }
  }
  return Status::ok();
}

Status FfnWorker::run(LaneId lane_id) {
  Lane& lane = lanes_[lane_id];
  const ServerMask participants = lane.steps.front().participants;
  const auto id = hop(lane_id);
  progress_.set(lane_id, {.step = id.step, .layer = id.layer, .waiting = false});
  if (auto status = gather(id, participants); !status) {
    return status;
  }
  const model::FfnLayerWeights& layer = weights_->layers[id.layer];
  auto status = kernels::launch_expert_ffn({.num_tokens = num_tokens_,
                                            .hidden_dim = hidden_dim_,
                                            .intermediate_dim = layer.intermediate_dim,
                                            .token_rows = token_rows_.data(),
                                            .token_dtype = options_.dispatch_dtype,
                                            .route_offsets = route_offsets_.data(),
                                            .route_experts = route_experts_.data(),
                                            .route_weights = route_weights_.data(),
                                            .experts = layer.experts,
                                            .activation = layer.activation,
                                            .out_rows = out_rows_.data(),
                                            .out_dtype = options_.combine_dtype,
                                            .precision = options_.precision,
                                            .abort = abort_},
                                           scratch_, stream_);
  if (!status) {
    return status;
  }
  for (ServerRank rank = 0; rank < options_.num_attention_servers; ++rank) {
    if ((participants >> rank & 1U) != 0) {
      port_->send_combine(rank, id, rows_of_[rank]);
    }
  }
  layers_run_.fetch_add(1, std::memory_order_relaxed);
  rows_run_.fetch_add(num_tokens_, std::memory_order_relaxed);
  if (++lane.layer == num_layers_) {
    lane.layer = 0;
    lane.steps.pop_front();
  }
  if (!lane.steps.empty()) {
    progress_.set(lane_id, {.step = lane.steps.front().step, .layer = lane.layer, .waiting = true});
  }
  return Status::ok();
}

std::string FfnWorker::describe_waits() const {
  std::string text;
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    if (!lanes_[lane].steps.empty()) {
      const auto id = hop(lane);
      text +=
          fmt::format("{}step {} layer {} lane {}: {}", text.empty() ? "" : "; ", id.step, id.layer,
                      lane, port_->missing_peers(id, lanes_[lane].steps.front().participants));
    }
  }
  return text;
}

}  // namespace fastfd::ffn_server
