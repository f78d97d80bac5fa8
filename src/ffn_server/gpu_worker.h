#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::ffn_server {

/// The kernels of an FFN server: for every layer of a (step, lane) wait, index, both expert GEMMs,
/// weighted partial sums and the answer. Loop thread only.
class GpuFfnWorker {
 public:
  /// Captures the graphs of all lanes: only while no kernel waits on this GPU.
  GpuFfnWorker(const FfnServerOptions& options, const model::ModelSpec& spec,
               std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu);

  /// GPU memory beside the weights.
  static std::uint64_t workspace_bytes(const FfnServerOptions& options,
                                       const model::ModelSpec& spec, std::uint32_t num_experts);

  /// What the server's waiting kernels read.
  std::uint32_t* abort_word() const { return abort_word_.as<std::uint32_t>(); }

  /// Windows of the epoch that starts; nothing of an earlier one is running.
  Status begin_epoch(const transport::DevicePort& port);
  /// Enqueues all layers of one lane of a step.
  Status enqueue(Epoch epoch, StepId step, const FfnLanePlan& plan);
  /// Blocks until the streams are empty.
  Status synchronize() const;
  /// Why the GPU gave up, once the streams are empty; `aborted` 0: it did not.
  Result<layout::AbortState> abort_state();

 private:
  static constexpr std::uint32_t kRingSize = 5;  // steps in flight, and one being filled

  struct Lane {
    Lane(const device::GpuPart& gpu, const FfnServerOptions& options, const model::ModelSpec& spec,
         std::uint32_t num_experts);

    device::DeviceStream stream;
    device::PinnedBuffer uploads;  // LaneControl [kRingSize]
    std::vector<device::DeviceEvent> uploaded;
    std::uint32_t next_upload = 0;
    std::uint32_t num_uploads = 0;
    device::DeviceBuffer control, ready, ctas_done;
    device::DeviceBuffer expert_begin, route_tokens, route_weights, num_tokens;
    device::DeviceBuffer token_route_begin, token_routes, token_rows, token_sources, peer_rows;
    device::DeviceBuffer hidden, outputs;
    std::map<std::uint32_t, device::DeviceGraph> graphs;  // by bucket

    kernels::cuda::RouteTables tables() const;

    struct Array {
      device::DeviceBuffer Lane::*buffer;
      std::size_t num_bytes;
    };
    /// All of a lane's memory on the GPU.
    static std::vector<Array> arrays(const FfnServerOptions& options, const model::ModelSpec& spec,
                                     std::uint32_t num_experts);
  };

  void capture_graphs();
  /// All layers; what differs between steps of one bucket is in device memory.
  Status run(LaneId lane, std::uint32_t bucket);
  Status run_layer(Lane& lane, const layout::LaneHop& hop, std::uint32_t bucket);

  FfnServerOptions options_;
  model::ModelSpec spec_;
  std::shared_ptr<const model::DeviceFfnWeights> weights_;
  device::GpuPart gpu_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  std::uint32_t max_tokens_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // [kMaxLanes]
  device::DeviceBuffer abort_, timeout_ns_;
  device::PinnedBuffer abort_copy_, abort_word_;
  device::DeviceBuffer dispatch_windows_, combine_windows_;
  device::PinnedBuffer epoch_upload_;  // windows and the wait limit
};

}  // namespace fastfd::ffn_server
