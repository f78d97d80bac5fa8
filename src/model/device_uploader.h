#pragma once

#include <cstddef>
#include <vector>

#include "fastfd/device/cuda.h"

namespace fastfd::model {

/// Puts tensors into GPU memory side by side, through a pinned buffer. Throws DeviceError. One
/// thread.
class DeviceUploader {
 public:
  explicit DeviceUploader(const device::CudaDevice& device);

  /// Room for `count` elements, aligned to 256 bytes; fill it with copy() or on stream().
  template <typename T>
  T* reserve(std::size_t count) {
    return reinterpret_cast<T*>(reserve_bytes(count * sizeof(T)));
  }
  template <typename T>
  void copy(T* to, const T* from, std::size_t count) {
    copy_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
               count * sizeof(T));
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    T* to = reserve<T>(values.size());
    copy(to, values.data(), values.size());
    return to;
  }

  /// What kernels that write into the memory run on, in order with the copies.
  device::CudaStream stream() const { return stream_.handle(); }

  /// All memory handed out, once everything is in it; the uploader is done.
  std::vector<device::DeviceBuffer> take();

 private:
  std::byte* reserve_bytes(std::size_t num_bytes);
  void copy_bytes(std::byte* to, const std::byte* from, std::size_t num_bytes);

  const device::CudaDevice& device_;
  device::DeviceStream stream_;
  device::PinnedBuffer staging_;
  std::vector<device::DeviceBuffer> blocks_;
  std::size_t used_bytes_ = 0;  // of the last block
};

}  // namespace fastfd::model
