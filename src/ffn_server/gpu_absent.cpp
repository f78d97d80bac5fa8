// Stands in for the GPU server where there is no CUDA toolkit: says so.
#include "fastfd/ffn_server/gpu_ffn_server.h"

namespace fastfd::ffn_server {

// Values as in the real ones, which keep them.
// NOLINTBEGIN(performance-unnecessary-value-param)

class GpuFfnServer::Impl {};

GpuFfnServer::GpuFfnServer(const FfnServerOptions& /*options*/, const model::ModelSpec& /*spec*/,
                           std::shared_ptr<const model::DeviceFfnWeights> /*weights*/,
                           const device::GpuPart& /*gpu*/, FailureSink /*on_failure*/) {
  throw device::DeviceError(device::cuda_availability().message());
}
GpuFfnServer::~GpuFfnServer() = default;
std::uint64_t GpuFfnServer::workspace_bytes(const FfnServerOptions& /*options*/,
                                            const model::ModelSpec& /*spec*/,
                                            const ExpertPlacement& /*placement*/) {
  throw device::DeviceError(device::cuda_availability().message());
}
void GpuFfnServer::begin_epoch(Epoch /*epoch*/, std::shared_ptr<transport::DevicePort> /*port*/) {}
void GpuFfnServer::submit_plan(FfnStepPlan /*plan*/) {}
void GpuFfnServer::stop_epoch() {}
ServerProgress GpuFfnServer::progress() const { return {}; }
FfnLoad GpuFfnServer::load() const { return {}; }

// NOLINTEND(performance-unnecessary-value-param)

}  // namespace fastfd::ffn_server
