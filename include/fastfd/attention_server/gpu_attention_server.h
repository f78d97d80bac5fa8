#pragma once

#include <memory>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"
#include "kernels/layout/hop_times.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::attention_server {

/// One hop of a co-located server: what its experts' kernels read and where they run.
struct InlineHop {
  layout::LaneHop hop;
  std::uint32_t bucket = 0;  ///< of each participant's rows
  // The attention server's own, in device memory (abort_word: pinned).
  const layout::LaneControl* control = nullptr;
  layout::AbortState* abort = nullptr;
  const std::uint32_t* abort_word = nullptr;
  layout::HopTimes* times = nullptr;  ///< [1] of the wait for the other ranks, if there are any
  device::CudaStream stream = nullptr;
};

/// Experts on the attention server's own GPU: what a co-located server has instead of an FFN
/// server. They run on the lane's stream between dispatch and combine. Without other ranks nobody
/// waits for anybody; with them, ranks exchange tokens by expert parallelism.
class InlineExperts {
 public:
  virtual ~InlineExperts() = default;
  virtual bool has_peers() const = 0;
  /// Loop thread, in front of the epoch's first step. Blocks until `stream` has done its part.
  virtual Status begin_epoch(const device::DeviceStream& stream) = 0;
  /// Enqueues the experts of one hop; also while graphs are captured.
  virtual Status run(const InlineHop& hop) = 0;
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

  /// GPU memory that a server of these options takes beside its KV pool, its recurrent states
  /// and its weights. Throws
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
