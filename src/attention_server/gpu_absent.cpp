// Stands in for the GPU server where there is no CUDA toolkit: says so.
#include "fastfd/attention_server/gpu_attention_server.h"

namespace fastfd::attention_server {

// Values as in the real ones, which keep them.
// NOLINTBEGIN(performance-unnecessary-value-param)

class GpuAttentionServer::Impl {};

GpuAttentionServer::GpuAttentionServer(
    const AttentionServerOptions& /*options*/, const model::ModelSpec& /*spec*/,
    std::shared_ptr<const model::DeviceAttentionWeights> /*weights*/,
    const device::GpuPart& /*gpu*/, ResultSink /*on_result*/, FailureSink /*on_failure*/,
    InlineExperts* /*experts*/) {
  throw device::DeviceError(device::cuda_availability().message());
}
GpuAttentionServer::~GpuAttentionServer() = default;
std::uint64_t GpuAttentionServer::workspace_bytes(const AttentionServerOptions& /*options*/,
                                                  const model::ModelSpec& /*spec*/) {
  throw device::DeviceError(device::cuda_availability().message());
}
void GpuAttentionServer::begin_epoch(Epoch /*epoch*/,
                                     std::shared_ptr<transport::DevicePort> /*port*/,
                                     ExpertPlacement /*placement*/) {}
void GpuAttentionServer::submit_plan(AttentionStepPlan /*plan*/) {}
void GpuAttentionServer::stop_epoch() {}
ServerProgress GpuAttentionServer::progress() const { return {}; }

// NOLINTEND(performance-unnecessary-value-param)

}  // namespace fastfd::attention_server
