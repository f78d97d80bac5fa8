#pragma once

#include <memory>

#include "fastfd/device/gpu_part.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"

namespace fastfd::ffn_server {

/// An FFN server whose experts are on a GPU. A plan becomes all of its (layer, lane) kernels at
/// once: each waits on the GPU for the dispatches of its participants and answers them. Otherwise
/// as FfnServer. options.precision and options.threads mean nothing here.
class GpuFfnServer final : public ServerLoop {
 public:
  /// Throws DeviceError if the GPU has no room. Captures graphs: only while no kernel waits on this
  /// GPU.
  GpuFfnServer(const FfnServerOptions& options, const model::ModelSpec& spec,
               std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu,
               FailureSink on_failure);
  ~GpuFfnServer() override;

  /// GPU memory that a server of these options and this placement takes beside its
  /// weights. Throws DeviceError in a build without CUDA.
  static std::uint64_t workspace_bytes(const FfnServerOptions& options,
                                       const model::ModelSpec& spec,
                                       const ExpertPlacement& placement);

  GpuFfnServer(const GpuFfnServer&) = delete;
  GpuFfnServer& operator=(const GpuFfnServer&) = delete;

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::DevicePort> port);
  void submit_plan(FfnStepPlan plan);
  /// Blocks until the GPU has left the epoch.
  void stop_epoch() override;
  ServerProgress progress() const override;
  FfnLoad load() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::ffn_server
