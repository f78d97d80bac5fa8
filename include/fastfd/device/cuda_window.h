#pragma once

/// GPU memory that other processes and other GPUs of the host map: what receive windows lie in.

#include <cstddef>
#include <memory>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {

/// One allocation of a GPU, as its owner made it or as a peer has mapped it; both address the same
/// memory, and kernels of both read and write it. The memory lives until the last of them is gone:
/// a peer's death takes nothing from the others.
///
/// Creating, mapping and destroying synchronise with the GPU: only while no kernel waits.
class DeviceWindow {
 public:
  /// At least `num_bytes`, zero-filled. kResourceExhausted if the GPU has no room.
  static Result<DeviceWindow> create(const CudaDevice& owner, std::size_t num_bytes);

  /// Maps for kernels of `device` what another process exported; `num_bytes` is what it gave to
  /// create. Leaves the descriptor open. On another GPU than the owner's, both must reach each
  /// other (NVLink or PCIe peers), else kUnavailable.
  static Result<DeviceWindow> map_peer(const CudaDevice& device, int fd, std::size_t num_bytes);

  /// A new descriptor for a peer (SCM_RIGHTS), which the caller closes.
  Result<int> export_fd() const;

  /// Lets kernels of another GPU of this process use the window as well.
  Status allow_access(const CudaDevice& device) const;

  std::byte* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }
  /// What the GPU really spends: multiples of its allocation granularity (2 MiB on an H200).
  std::size_t mapped_bytes() const { return mapped_bytes_; }

 private:
  DeviceWindow() = default;
  std::shared_ptr<void> mapping_;  // shared: an address range can't be half moved
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace fastfd::device
