#include "fastfd/attention_server/gpu_attention_server.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "attention_server/gpu_runner.h"
#include "attention_server/sequence_table.h"
#include "fastfd/core/check.h"
#include "fastfd/core/epoch_loop.h"
#include "fastfd/core/lane_progress.h"
#include "fastfd/device/completion_thread.h"
#include "fastfd/transport/device_abort.h"
#include "kernels/wait/work_clock.h"

namespace fastfd::attention_server {
namespace {

// A (step, lane) that is on the GPU.
struct Flight {
  Epoch epoch = 0;
  StepId step = 0;
  LaneId lane = 0;
  std::uint32_t num_rows = 0;
  std::uint32_t ring_index = 0;
  bool overlapped = false;
  std::vector<SampleRow> samples;
};

}  // namespace

class GpuAttentionServer::Impl {
 public:
  Impl(const AttentionServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::DeviceAttentionWeights> weights, const device::GpuPart& gpu,
       ResultSink on_result, FailureSink on_failure, InlineExperts* experts)
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
        runner_(options, spec, std::move(weights), gpu, experts),
        collector_(device_, "collector"),
        loop_(
            "attention-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  ~Impl() { loop_.stop(); }

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port,
                   ExpertPlacement placement) {
    placement_ = std::move(placement);
    port->use_abort_word(runner_.abort_word());
    port->use_abort_state(runner_.abort_state());
    loop_.begin(epoch, std::move(port));
  }
  void submit_plan(AttentionStepPlan plan) { loop_.submit(std::move(plan)); }
  void stop_epoch() { loop_.stop(); }
  ServerProgress progress() const {
    ServerProgress progress = reported_.read();
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      const auto on_gpu = runner_.progress(lane);
      if (on_gpu.step > progress[lane].step) {
        progress[lane] = {on_gpu.step, on_gpu.layer, on_gpu.waiting};
      }
    }
    return progress;
  }

 private:
  // Whatever ends the epoch, the GPU has left it when this returns.
  Status serve_epoch() {
    auto status = device_.make_current();
    sequences_.reset();
    reported_.reset();
    said_why_ = false;
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
    const auto told = std::chrono::steady_clock::now();
    loop_.port().abort();  // what still waits on the GPU need not wait any longer
    const auto left = runner_.synchronize();
    spdlog::info(
        "epoch {}: the GPU was idle {:.1f} ms after the end", loop_.epoch(),
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - told).count());
    collector_.drain();
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
                    .overlapped = lane.lane == 0 && collector_.num_pending() > 0,
                    .samples = batch_.samples};
      if (auto status = runner_.enqueue(
              lane.lane, batch_, sequences_, control,
              {.bucket = lane.row_bucket, .use_graph = lane.use_graph, .barrier = plan.barrier});
          !status) {
        return status;
      }
      GpuLane& on_gpu = runner_.lane(lane.lane);
      flight.ring_index = on_gpu.ring_index();
      collector_.add(on_gpu.done(), [this, flight = std::move(flight)](const Status& done) {
        done ? report(flight) : loop_.fail(done);
      });
    }
    return Status::ok();
  }

  // On the collector's thread, in the order in which lanes were enqueued.
  void report(const Flight& flight) {
    const GpuLaneStaging& staging = runner_.lane(flight.lane).staging_at(flight.ring_index);
    if (staging.abort->aborted != 0) {
      const auto why = transport::describe_abort(*staging.abort, Role::kAttention);
      if (why.code() != StatusCode::kAborted) {
        loop_.fail(why);
      } else if (!std::exchange(said_why_, true)) {
        spdlog::warn("{}", why.message());  // who it waited for is who was lost, or waited as well
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
    account(staging.times, result);
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
    reported_.set(flight.lane, {.step = flight.step, .layer = num_layers_, .waiting = false});
    on_result_(std::move(result));
  }

  // What lanes do at once counts once: for the lane that is reported first.
  void account(const layout::HopTimes* times, LaneResult& result) {
    const double worked = static_cast<double>(work_.busy_ns());
    const double stood = static_cast<double>(work_.waiting_ns());
    work_.add({times, runner_.num_waits()}, times[GpuLane::num_times(num_layers_) - 1]);
    result.compute_us = static_cast<float>((static_cast<double>(work_.busy_ns()) - worked) / 1e3);
    result.wait_us = static_cast<float>((static_cast<double>(work_.waiting_ns()) - stood) / 1e3);
  }

  const AttentionServerOptions options_;
  const std::uint32_t num_layers_;
  const device::CudaDevice device_;
  const ResultSink on_result_;
  ExpertPlacement placement_;  // written between epochs
  LaneProgressBoard reported_;

  SequenceTable sequences_;  // loop thread only, as the next two
  GpuRunner runner_;
  LaneBatch batch_;
  bool said_why_ = false;    // of the epoch's end; collector's thread while there are flights
  kernels::WorkClock work_;  // collector's thread only
  device::CompletionThread collector_;
  EpochLoop<AttentionStepPlan, transport::DevicePort> loop_;  // last: it uses all of the above
};

GpuAttentionServer::GpuAttentionServer(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec,
                                       std::shared_ptr<const model::DeviceAttentionWeights> weights,
                                       const device::GpuPart& gpu, ResultSink on_result,
                                       FailureSink on_failure, InlineExperts* experts)
    : impl_(std::make_unique<Impl>(options, spec, std::move(weights), gpu, std::move(on_result),
                                   std::move(on_failure), experts)) {}
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
