#pragma once

/// One server's end of the data plane on a GPU: addresses, and the word that ends its waits.
/// Kernels store, signal and wait by themselves (kernels/dispatch, kernels/combine, kernels/wait);
/// the host only says where. Where kernels can't reach a peer's memory (nccl), they store into
/// windows of their own GPU, and the port's send and receive halves enqueue what carries the
/// messages over.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/device/cuda.h"
#include "fastfd/transport/port.h"

namespace fastfd::layout {
struct AbortState;
struct LaneHop;
}  // namespace fastfd::layout

namespace fastfd::transport {

/// The windows of a server's pairs, by the peer's rank; nullptr: that peer is not in the epoch.
struct DeviceWindows {
  std::vector<std::byte*> send;        ///< the peers' windows, which this server's kernels write
  std::vector<std::byte*> receive;     ///< its own, which the peers' kernels write
  std::shared_ptr<const void> memory;  ///< keeps every mapping named above alive
};

/// Windows and abort word of one server in one epoch. abort() is for any thread, all else for the
/// thread that enqueues the server's kernels.
class DevicePort {
 public:
  DevicePort(const WindowShape& shape, DeviceWindows windows);
  virtual ~DevicePort() = default;
  DevicePort(const DevicePort&) = delete;
  DevicePort& operator=(const DevicePort&) = delete;

  const WindowShape& shape() const { return shape_; }
  const DeviceWindows& windows() const { return windows_; }

  /// The pinned word that the server's waiting kernels read: the same in every epoch, because
  /// captured graphs name it. Outlives the port; before begin_epoch.
  void use_abort_word(std::uint32_t* word) { abort_word_ = word; }
  /// What the server's kernels test before they store to a peer, in device memory; as above.
  void use_abort_state(layout::AbortState* state) { abort_state_ = state; }
  virtual void begin_epoch(Epoch epoch);
  /// Ends what waits on the GPU. When it returns, nothing enqueued here waits for a peer.
  virtual void abort();

  /// False: the server enqueues every step anew. The plan says what both pools do
  /// (Blueprint::uses_graphs), so this only catches a plan that says otherwise.
  virtual bool allows_graphs() const { return true; }

  // Called around the kernels of a hop, on the lane's stream; they return when the work is
  // enqueued. `bucket` and `plan` are the plan's of this (step, lane).

  /// Attention server, behind its dispatch kernels: to every FFN server.
  virtual Status send_dispatch(const layout::LaneHop& hop, std::uint32_t bucket,
                               device::CudaStream stream);
  /// FFN server, in front of the wait: from every participant.
  virtual Status receive_dispatch(const layout::LaneHop& hop, const FfnLanePlan& plan,
                                  device::CudaStream stream);
  /// FFN server, behind its combine kernel: to every participant.
  virtual Status send_combine(const layout::LaneHop& hop, const FfnLanePlan& plan,
                              device::CudaStream stream);
  /// Attention server, in front of the wait: from every FFN server.
  virtual Status receive_combine(const layout::LaneHop& hop, std::uint32_t bucket,
                                 device::CudaStream stream);

  /// What went wrong on the way to a peer while nothing was enqueued. Never blocks; the server asks
  /// every kHealthInterval.
  virtual Status health();
  static constexpr std::chrono::milliseconds kHealthInterval{100};

 protected:
  layout::AbortState* abort_state() const { return abort_state_; }

 private:
  WindowShape shape_;
  DeviceWindows windows_;
  std::uint32_t* abort_word_ = nullptr;
  layout::AbortState* abort_state_ = nullptr;
};

/// Every port of a cluster whose servers are threads of one process and share one GPU: windows are
/// plain memory of that GPU.
class InprocDeviceFabric {
 public:
  /// Throws DeviceError if the GPU has no room. Creates windows: only while no kernel waits.
  InprocDeviceFabric(const device::CudaDevice& device, const WindowShape& shape,
                     std::uint32_t num_attention, std::uint32_t num_ffn);

  std::shared_ptr<DevicePort> attention_port(ServerRank rank) const { return attention_.at(rank); }
  std::shared_ptr<DevicePort> ffn_port(ServerRank rank) const { return ffn_.at(rank); }

 private:
  std::vector<std::shared_ptr<DevicePort>> attention_;
  std::vector<std::shared_ptr<DevicePort>> ffn_;
};

}  // namespace fastfd::transport
