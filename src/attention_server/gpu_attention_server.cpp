#include "fastfd/attention_server/gpu_attention_server.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <thread>

#include "attention_server/gpu_runner.h"
#include "attention_server/sequence_table.h"
#include "fastfd/core/blocking_queue.h"
#include "fastfd/core/check.h"
#include "fastfd/core/epoch_loop.h"
#include "fastfd/core/lane_progress.h"

namespace fastfd::attention_server {
namespace {

using Clock = std::chrono::steady_clock;

// A (step, lane) that is on the GPU.
struct Flight {
  Epoch epoch = 0;
  StepId step = 0;
  LaneId lane = 0;
  std::uint32_t num_rows = 0;
  std::uint32_t ring_index = 0;
  bool overlapped = false;
  Clock::time_point enqueued;
  std::vector<SampleRow> samples;
};

std::string describe(const layout::AbortState& abort) {
  switch (abort.reason) {
    case layout::AbortReason::kHostAsked:
      return "epoch abandoned";
    case layout::AbortReason::kTimedOut:
      return fmt::format("FFN server {} did not answer step {} layer {} lane {} within {:.1f} s",
                         abort.peer, abort.step, abort.layer, abort.lane,
                         static_cast<double>(abort.waited_ns) * 1e-9);
    case layout::AbortReason::kBadMessage:
      return fmt::format("what FFN server {} answered to step {} layer {} lane {} does not fit it",
                         abort.peer, abort.step, abort.layer, abort.lane);
    case layout::AbortReason::kBadPlacement:
      return fmt::format("an expert of layer {} is placed on FFN server {}, which is not connected",
                         abort.layer, abort.peer);
  }
  return "unknown";
}

}  // namespace

class GpuAttentionServer::Impl {
 public:
  Impl(const AttentionServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::DeviceAttentionWeights> weights, const device::GpuPart& gpu,
       ResultSink on_result, FailureSink on_failure)
      : options_(options),
        num_layers_(spec.num_layers),
        device_(gpu.device()),
        on_result_(std::move(on_result)),
        sequences_({.num_slots = options.num_slots,
                    .num_pages = options.num_pages,
                    .page_size = options.page_size,
                    .max_model_len = options.max_model_len,
                    .max_lane_rows = options.max_lane_rows,
                    .tokens_on_device = true}),
        runner_(options, spec, std::move(weights), gpu),
        collector_([this] { collect(); }),
        loop_(
            "attention-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  ~Impl() {
    loop_.stop();
    flights_.close();
    collector_.join();
  }

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port,
                   ExpertPlacement placement) {
    placement_ = std::move(placement);
    port->use_abort_word(runner_.abort_word());
    port->use_abort_state(runner_.abort_state());
    loop_.begin(epoch, std::move(port));
  }
  void submit_plan(AttentionStepPlan plan) { loop_.submit(std::move(plan)); }
  void stop_epoch() { loop_.stop(); }
  ServerProgress progress() const { return progress_.read(); }

 private:
  // Whatever ends the epoch, the GPU has left it when this returns.
  Status serve_epoch() {
    auto status = device_.make_current();
    sequences_.reset();
    progress_.reset();
    failed_.store(false);
    num_in_flight_.store(0);
    if (status) {
      status = runner_.begin_epoch(loop_.port(), placement_);
    }
    while (status) {
      const auto plan = loop_.take_within(transport::DevicePort::kHealthInterval);
      if (plan) {
        status = enqueue(*plan);
      } else if (loop_.aborted()) {
        status = {StatusCode::kAborted, "epoch abandoned"};
      } else {
        status = loop_.port().health();
      }
    }
    loop_.port().abort();  // what still waits on the GPU need not wait any longer
    const auto left = runner_.synchronize();
    drain_flights();
    return left ? status : left;
  }

  Status enqueue(const AttentionStepPlan& plan) {
    for (const AttentionLanePlan& lane : plan.lanes) {
      check(lane.lane < kMaxLanes, "plan names a lane that does not exist");
      if (auto status = sequences_.build(lane, batch_); !status) {
        return status;
      }
      if ((lane.participants >> options_.rank & 1U) == 0) {
        continue;  // only rows that leave
      }
      layout::LaneControl control;
      control.step = plan.step;
      control.epoch = loop_.epoch();
      control.num_rows = batch_.num_rows;
      control.num_spans = static_cast<std::uint32_t>(batch_.spans.size());
      control.num_samples = static_cast<std::uint32_t>(batch_.samples.size());
      control.participants = lane.participants;
      Flight flight{.epoch = loop_.epoch(),
                    .step = plan.step,
                    .lane = lane.lane,
                    .num_rows = batch_.num_rows,
                    .ring_index = 0,
                    .overlapped = lane.lane == 0 && num_in_flight_.load() > 0,
                    .enqueued = Clock::now(),
                    .samples = batch_.samples};
      if (auto status = runner_.enqueue(
              lane.lane, batch_, sequences_, control,
              {.bucket = lane.row_bucket, .use_graph = lane.use_graph, .barrier = plan.barrier});
          !status) {
        return status;
      }
      flight.ring_index = runner_.lane(lane.lane).ring_index();
      progress_.set(lane.lane, {.step = plan.step, .layer = 0, .waiting = false});
      num_in_flight_.fetch_add(1);
      flights_.push(std::move(flight));
    }
    return Status::ok();
  }

  // ---- the collector's thread: results in the order in which lanes were enqueued ----

  void collect() {
    pthread_setname_np(pthread_self(), "collector");
    if (const auto status = device_.make_current(); !status) {
      spdlog::error("{}", status.to_string());
    }
    while (auto flight = flights_.pop()) {
      report(*flight);
      num_in_flight_.fetch_sub(1);
      num_in_flight_.notify_all();
    }
  }

  void report(const Flight& flight) {
    GpuLane& lane = runner_.lane(flight.lane);
    if (const auto status = lane.done_at(flight.ring_index).synchronize(); !status) {
      spdlog::error("step {} lane {}: {}", flight.step, flight.lane, status.to_string());
      return;
    }
    const GpuLaneStaging& staging = lane.staging_at(flight.ring_index);
    if (staging.abort->aborted != 0) {
      if (!failed_.exchange(true) && staging.abort->reason != layout::AbortReason::kHostAsked) {
        spdlog::error("{}", describe(*staging.abort));
      }
      return;
    }
    LaneResult result{.epoch = flight.epoch,
                      .step = flight.step,
                      .attention_rank = options_.rank,
                      .lane = flight.lane,
                      .tokens = {},
                      .num_rows = flight.num_rows,
                      .overlapped = flight.overlapped};
    result.compute_us =
        std::chrono::duration<float, std::micro>(Clock::now() - flight.enqueued).count();
    for (std::size_t i = 0; i < flight.samples.size(); ++i) {
      const auto& sampled = staging.results[i];
      SampledToken& token = result.tokens.emplace_back();
      token.slot = flight.samples[i].slot;
      token.generation = flight.samples[i].generation;
      token.position = flight.samples[i].position;
      token.token = sampled.token;
      token.logprob = sampled.logprob;
      for (std::uint32_t t = 0; t < sampled.num_top; ++t) {
        token.top_logprobs.push_back({sampled.top[t].token, sampled.top[t].logprob});
      }
    }
    progress_.set(flight.lane, {.step = flight.step, .layer = num_layers_, .waiting = false});
    on_result_(std::move(result));
  }

  // The streams are empty, so the collector is about to be through.
  void drain_flights() {
    for (auto left = num_in_flight_.load(); left != 0; left = num_in_flight_.load()) {
      num_in_flight_.wait(left);
    }
  }

  const AttentionServerOptions options_;
  const std::uint32_t num_layers_;
  const device::CudaDevice device_;
  const ResultSink on_result_;
  ExpertPlacement placement_;  // written between epochs
  LaneProgressBoard progress_;

  SequenceTable sequences_;  // loop thread only, as the next two
  GpuRunner runner_;
  LaneBatch batch_;
  BlockingQueue<Flight> flights_;
  std::atomic<std::uint32_t> num_in_flight_{0};
  std::atomic<bool> failed_{false};
  std::thread collector_;
  EpochLoop<AttentionStepPlan, transport::DevicePort> loop_;  // last: it uses all of the above
};

GpuAttentionServer::GpuAttentionServer(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec,
                                       std::shared_ptr<const model::DeviceAttentionWeights> weights,
                                       const device::GpuPart& gpu, ResultSink on_result,
                                       FailureSink on_failure)
    : impl_(std::make_unique<Impl>(options, spec, std::move(weights), gpu, std::move(on_result),
                                   std::move(on_failure))) {}
GpuAttentionServer::~GpuAttentionServer() = default;
void GpuAttentionServer::begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port,
                                     ExpertPlacement placement) {
  impl_->begin_epoch(epoch, std::move(port), std::move(placement));
}
void GpuAttentionServer::submit_plan(AttentionStepPlan plan) {
  impl_->submit_plan(std::move(plan));
}
void GpuAttentionServer::stop_epoch() { impl_->stop_epoch(); }
ServerProgress GpuAttentionServer::progress() const { return impl_->progress(); }

}  // namespace fastfd::attention_server
