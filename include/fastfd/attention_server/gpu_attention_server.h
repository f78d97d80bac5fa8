#pragma once

#include <memory>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::attention_server {

/// Experts on the attention server's own GPU: what a co-located server has instead of FFN servers.
/// They run on the lane's stream between dispatch and combine, so nobody waits for anybody.
class InlineExperts {
 public:
  virtual ~InlineExperts() = default;
  /// Loop thread, in front of the epoch's first step.
  virtual Status begin_epoch() = 0;
  /// Enqueues the experts of one hop of up to `bucket` rows; also while graphs are captured.
  /// `control` and `abort` are the attention server's, in device memory.
  virtual Status run(const layout::LaneHop& hop, std::uint32_t bucket,
                     const layout::LaneControl* control, layout::AbortState* abort,
                     device::CudaStream stream) = 0;
};

/// An attention server whose KV cache, weights and arithmetic are on a GPU. The host turns plans
/// into kernels as they come and reports tokens as they are sampled; between the two it waits for
/// nothing. Otherwise as AttentionServer. options.precision and options.threads mean nothing here.
class GpuAttentionServer final : public ServerLoop {
 public:
  /// Throws DeviceError if the GPU has no room. Captures graphs: only while no kernel waits on this
  /// GPU. `experts`: a co-located server; they outlive it.
  GpuAttentionServer(const AttentionServerOptions& options, const model::ModelSpec& spec,
                     std::shared_ptr<const model::DeviceAttentionWeights> weights,
                     const device::GpuPart& gpu, ResultSink on_result, FailureSink on_failure,
                     InlineExperts* experts = nullptr);
  ~GpuAttentionServer() override;

  /// GPU memory that a server of these options takes beside its KV pool and its weights. Throws
  /// DeviceError in a build without CUDA.
  static std::uint64_t workspace_bytes(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec);

  GpuAttentionServer(const GpuAttentionServer&) = delete;
  GpuAttentionServer& operator=(const GpuAttentionServer&) = delete;

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port,
                   ExpertPlacement placement);
  void submit_plan(AttentionStepPlan plan);
  /// Blocks until the GPU has left the epoch.
  void stop_epoch() override;
  ServerProgress progress() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::attention_server
