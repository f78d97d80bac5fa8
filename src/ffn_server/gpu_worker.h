#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/layout/hop_times.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::ffn_server {

/// The kernels of an FFN server: for every layer of a (step, lane) wait, index, both expert GEMMs,
/// weighted partial sums and the answer. Loop thread only.
class GpuFfnWorker {
 public:
  enum class Streams {
    kOfItsOwn,       ///< of an FFN server: one a lane
    kOfItsAttention  ///< of a co-located server's experts, which only run inline
  };
  /// With streams of its own it captures the graphs of all lanes: only while no kernel waits on
  /// this GPU. Throws DeviceError; also if rows don't arrive in the experts' type, which is what
  /// the kernels multiply.
  GpuFfnWorker(const FfnServerOptions& options, const model::ModelSpec& spec,
               std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu,
               Streams streams = Streams::kOfItsOwn);

  /// GPU memory beside the weights.
  static std::uint64_t workspace_bytes(const FfnServerOptions& options,
                                       const model::ModelSpec& spec,
                                       const ExpertPlacement& placement);

  /// What the server's waiting kernels read.
  std::uint32_t* abort_word() const { return abort_word_.as<std::uint32_t>(); }
  /// What its kernels test.
  layout::AbortState* device_abort_state() const { return abort_.as<layout::AbortState>(); }

  /// Windows of the epoch that starts; nothing of an earlier one is running. The port is used until
  /// the next one comes.
  Status begin_epoch(transport::DevicePort& port) { return begin_epoch(port, *lanes_[0]->stream); }
  /// On the stream of somebody else.
  Status begin_epoch(transport::DevicePort& port, const device::DeviceStream& stream);
  /// What a step of a lane left in host memory; valid once `done` has passed, until kRingSize
  /// further steps of that lane.
  struct Outcome {
    const device::DeviceEvent* done = nullptr;
    const layout::HopTimes* times = nullptr;  // [num_layers] waits, then the whole step
    const std::uint32_t* num_rows = nullptr;  // [num_layers] that came
    const layout::AbortState* abort = nullptr;
  };
  /// Enqueues all layers of one lane of a step. Blocks only if the GPU is a whole ring behind.
  Result<Outcome> enqueue(Epoch epoch, StepId step, const FfnLanePlan& plan);
  /// Any thread.
  layout::HopProgress progress(LaneId lane) const {
    return layout::HopProgress::unpack(
        std::atomic_ref(*lanes_[lane]->progress_word()).load(std::memory_order_relaxed));
  }
  /// The experts of a co-located server: one hop behind its own dispatch on `stream`. `state` and
  /// `abort_word` are the attention server's. With `waits`, dispatches of other ranks are awaited.
  struct HopState {
    const layout::LaneControl* control;
    const std::uint32_t* ready;  // what the wait found
    layout::AbortState* abort;
  };
  struct Inline {
    layout::LaneHop hop;
    std::uint32_t bucket;  // rows of all participants
    HopState state;        // without `ready`
    const std::uint32_t* abort_word;
    layout::HopTimes* times;
    bool waits;
    device::CudaStream stream;
  };
  Status run_inline(const Inline& run);
  /// Blocks until the streams are empty.
  Status synchronize() const;

 private:
  static constexpr std::uint32_t kRingSize = 5;  // steps in flight, and one being filled

  struct Lane {
    Lane(const device::GpuPart& gpu, LaneId id, const FfnServerOptions& options,
         const model::ModelSpec& spec, const model::DeviceFfnWeights& weights, Streams streams);

    // What one step uploads and leaves behind, in pinned memory.
    struct Staging {
      layout::LaneControl* control;
      layout::HopTimes* times;
      std::uint32_t* num_rows;
      layout::AbortState* abort;
    };
    Staging staging(std::uint32_t entry) const;
    std::uint64_t* progress_word() const { return progress.as<std::uint64_t>(); }

    std::uint32_t num_layers;
    std::optional<device::DeviceStream> stream;
    std::size_t staging_bytes;  // of a ring entry
    device::PinnedBuffer ring;  // [kRingSize] stagings
    device::PinnedBuffer progress;
    std::vector<device::DeviceEvent> done;  // [kRingSize]
    std::uint32_t next_entry = 0;
    std::uint32_t num_steps = 0;
    device::DeviceBuffer times, arrived_rows;
    device::DeviceBuffer control, ready, ctas_done;
    device::DeviceBuffer expert_begin, route_tokens, route_weights, num_tokens;
    device::DeviceBuffer token_route_begin, token_routes, token_rows, token_sources, peer_rows;
    device::DeviceBuffer hidden, hidden_scales, outputs;
    std::map<std::uint32_t, device::DeviceGraph> graphs;  // by bucket

    kernels::cuda::RouteTables tables() const;

    struct Array {
      device::DeviceBuffer Lane::*buffer;
      std::size_t num_bytes;
    };
    /// All of a lane's memory on the GPU.
    static std::vector<Array> arrays(const FfnServerOptions& options, const model::ModelSpec& spec,
                                     const std::vector<model::DeviceFfnDims>& layers);
  };

  /// Routes' outputs are rounded before they are summed only if their sum is rounded as well.
  static DType route_output_dtype(const FfnServerOptions& options);
  /// Throws DeviceError if waiting kernels could keep the working ones from running.
  void check_residency();
  void capture_graphs();
  /// All layers; what differs between steps of one bucket is in device memory, but for what the
  /// port takes from the plan.
  Status run(const FfnLanePlan& plan, std::uint32_t bucket);
  Status replay_or_run(const FfnLanePlan& plan);
  Status run_layer(const FfnLanePlan& plan, const layout::LaneHop& hop, std::uint32_t bucket);
  /// What follows the wait: index, experts, partial sums, answers.
  Status answer(const Lane& lane, const layout::LaneHop& hop, std::uint32_t bucket,
                const HopState& state, device::CudaStream stream);

  FfnServerOptions options_;
  transport::DevicePort* port_ = nullptr;  // none yet while graphs are captured
  model::ModelSpec spec_;
  std::shared_ptr<const model::DeviceFfnWeights> weights_;
  device::GpuPart gpu_;
  transport::WindowShape window_shape_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  DType route_output_dtype_;
  std::uint32_t max_tokens_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // [kMaxLanes]
  device::DeviceBuffer abort_, timeout_ns_;
  device::DeviceBuffer always_ready_;  // uint32 that is not 0: there is nothing to wait for
  device::PinnedBuffer abort_word_;
  device::DeviceBuffer dispatch_windows_, combine_windows_;
  device::PinnedBuffer epoch_upload_;  // windows and the wait limit
};

}  // namespace fastfd::ffn_server
