#include "fastfd/ffn_server/gpu_ffn_server.h"

#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "fastfd/core/epoch_loop.h"
#include "fastfd/device/completion_thread.h"
#include "fastfd/transport/device_abort.h"
#include "ffn_server/gpu_worker.h"
#include "kernels/wait/work_clock.h"

namespace fastfd::ffn_server {

class GpuFfnServer::Impl {
 public:
  Impl(const FfnServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu,
       FailureSink on_failure)
      : rank_(options.rank),
        colocated_with_(options.colocated_with),
        num_layers_(spec.num_layers),
        device_(gpu.device()),
        worker_(options, spec, std::move(weights), gpu),
        collector_(device_, "collector"),
        loop_(
            "ffn-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  ~Impl() { loop_.stop(); }

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port) {
    port->use_abort_word(worker_.abort_word());
    port->use_abort_state(worker_.device_abort_state());
    loop_.begin(epoch, std::move(port));
  }
  void submit_plan(FfnStepPlan plan) { loop_.submit(std::move(plan)); }
  void stop_epoch() { loop_.stop(); }

  ServerProgress progress() const {
    ServerProgress progress;
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      const auto on_gpu = worker_.progress(lane);
      progress[lane] = {on_gpu.step, on_gpu.layer, on_gpu.waiting};
    }
    return progress;
  }

  FfnLoad load() const {
    const std::lock_guard lock(load_mutex_);
    return load_;
  }

 private:
  // Whatever ends the epoch, the GPU has left it when this returns.
  Status serve_epoch() {
    auto status = device_.make_current();
    said_why_ = false;
    if (status) {
      status = worker_.begin_epoch(loop_.port());
    }
    while (status) {
      const auto plan = loop_.take_within(transport::DevicePort::kHealthInterval);
      if (!plan) {
        status = loop_.aborted() ? Status(StatusCode::kAborted, "epoch abandoned")
                                 : loop_.port().health();
        continue;
      }
      for (const FfnLanePlan& lane : plan->lanes) {
        const bool elsewhere = colocated_with_ && (lane.participants >> *colocated_with_ & 1U) != 0;
        if (status && !elsewhere) {
          status = enqueue(plan->step, lane);
        }
      }
    }
    const auto told = std::chrono::steady_clock::now();
    loop_.port().abort();  // what still waits on the GPU need not wait any longer
    const auto left = worker_.synchronize();
    spdlog::info(
        "epoch {}: the GPU was idle {:.1f} ms after the end", loop_.epoch(),
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - told).count());
    collector_.drain();
    return left ? status : left;
  }

  Status enqueue(StepId step, const FfnLanePlan& lane) {
    const auto outcome = worker_.enqueue(loop_.epoch(), step, lane);
    if (!outcome) {
      return outcome.status();
    }
    collector_.add(*outcome->done, [this, outcome = *outcome](const Status& done) {
      done ? report(outcome) : loop_.fail(done);
    });
    return Status::ok();
  }

  // On the collector's thread.
  void report(const GpuFfnWorker::Outcome& outcome) {
    if (outcome.abort->aborted != 0) {
      const auto why = transport::describe_abort(*outcome.abort, Role::kFfn);
      if (why.code() != StatusCode::kAborted) {
        loop_.fail(why);
      } else if (!std::exchange(said_why_, true)) {
        spdlog::warn("{}", why.message());  // who it waited for is who was lost, or waited as well
      }
      return;
    }
    clock_.add({outcome.times, num_layers_}, outcome.times[num_layers_]);
    const std::lock_guard lock(load_mutex_);
    load_.ffn_rank = rank_;
    load_.layers_run += num_layers_;
    load_.rows_run +=
        std::accumulate(outcome.num_rows, outcome.num_rows + num_layers_, std::uint64_t{0});
    load_.compute_us = static_cast<double>(clock_.busy_ns()) / 1e3;
    load_.wait_us = static_cast<double>(clock_.waiting_ns()) / 1e3;
  }

  const ServerRank rank_;
  const std::optional<ServerRank> colocated_with_;
  const std::uint32_t num_layers_;
  const device::CudaDevice device_;
  GpuFfnWorker worker_;
  bool said_why_ = false;     // of the epoch's end; collector's thread while there are steps
  kernels::WorkClock clock_;  // collector's thread only
  mutable std::mutex load_mutex_;
  FfnLoad load_;
  device::CompletionThread collector_;
  EpochLoop<FfnStepPlan, transport::DevicePort> loop_;  // last: it uses all of the above
};

GpuFfnServer::GpuFfnServer(const FfnServerOptions& options, const model::ModelSpec& spec,
                           std::shared_ptr<const model::DeviceFfnWeights> weights,
                           const device::GpuPart& gpu, FailureSink on_failure)
    : impl_(std::make_unique<Impl>(options, spec, std::move(weights), gpu, std::move(on_failure))) {
}
GpuFfnServer::~GpuFfnServer() = default;
void GpuFfnServer::begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port) {
  impl_->begin_epoch(epoch, std::move(port));
}
void GpuFfnServer::submit_plan(FfnStepPlan plan) { impl_->submit_plan(std::move(plan)); }
void GpuFfnServer::stop_epoch() { impl_->stop_epoch(); }
ServerProgress GpuFfnServer::progress() const { return impl_->progress(); }
FfnLoad GpuFfnServer::load() const { return impl_->load(); }

}  // namespace fastfd::ffn_server
