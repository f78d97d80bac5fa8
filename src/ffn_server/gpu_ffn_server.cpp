#include "fastfd/ffn_server/gpu_ffn_server.h"

#include <string>

#include "fastfd/core/epoch_loop.h"
#include "fastfd/core/lane_progress.h"
#include "ffn_server/gpu_worker.h"

namespace fastfd::ffn_server {

class GpuFfnServer::Impl {
 public:
  Impl(const FfnServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu,
       FailureSink on_failure)
      : device_(gpu.device()),
        worker_(options, spec, std::move(weights), gpu),
        loop_(
            "ffn-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port) {
    port->use_abort_word(worker_.abort_word());
    port->use_abort_state(worker_.device_abort_state());
    loop_.begin(epoch, std::move(port));
  }
  void submit_plan(FfnStepPlan plan) { loop_.submit(std::move(plan)); }
  void stop_epoch() { loop_.stop(); }
  ServerProgress progress() const { return progress_.read(); }

 private:
  // Whatever ends the epoch, the GPU has left it when this returns.
  Status serve_epoch() {
    progress_.reset();
    auto status = device_.make_current();
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
        if (status) {
          status = worker_.enqueue(loop_.epoch(), plan->step, lane);
          progress_.set(lane.lane, {.step = plan->step, .layer = 0, .waiting = true});
        }
      }
    }
    loop_.port().abort();
    const auto left = worker_.synchronize();
    return left ? status : left;
  }

  const device::CudaDevice device_;
  LaneProgressBoard progress_;
  GpuFfnWorker worker_;
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

}  // namespace fastfd::ffn_server
