#pragma once

/// One server's end of the data plane on a GPU: addresses, and the word that ends its waits.
/// Kernels store, signal and wait by themselves (kernels/dispatch, kernels/combine, kernels/wait);
/// the host only says where.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/device/cuda.h"
#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// The windows of a server's pairs, by the peer's rank; nullptr: that peer is not in the epoch.
struct DeviceWindows {
  std::vector<std::byte*> send;        ///< the peers' windows, which this server's kernels write
  std::vector<std::byte*> receive;     ///< its own, which the peers' kernels write
  std::shared_ptr<const void> memory;  ///< keeps every mapping named above alive
};

/// Windows and abort word of one server in one epoch. abort() is for any thread.
class DevicePort {
 public:
  DevicePort(const WindowShape& shape, DeviceWindows windows);

  const WindowShape& shape() const { return shape_; }
  const DeviceWindows& windows() const { return windows_; }

  /// The pinned word that the server's waiting kernels read: the same in every epoch, because
  /// captured graphs name it. Outlives the port; before begin_epoch.
  void use_abort_word(std::uint32_t* word) { abort_word_ = word; }
  void begin_epoch(Epoch epoch);
  void abort();

 private:
  WindowShape shape_;
  DeviceWindows windows_;
  std::uint32_t* abort_word_ = nullptr;
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
