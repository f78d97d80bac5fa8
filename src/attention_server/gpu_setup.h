#pragma once

/// What the GPU parts of an attention server need while they are made.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastfd/device/cuda.h"
#include "kernels/rope/op.h"

namespace fastfd::attention_server {

/// Start-up only: throws DeviceError.
void require(const Status& status, const char* what);

/// Start-up only: copies through pinned memory and waits. On a stream that is there anyway:
/// hardware queues are few, and waiting kernels must not share them.
void upload_bytes_once(const device::DeviceBuffer& to, const device::CudaDevice& device,
                       const device::DeviceStream& stream, const void* from, std::size_t num_bytes);

template <typename T>
void upload_once(const device::DeviceBuffer& to, const device::CudaDevice& device,
                 const device::DeviceStream& stream, const std::vector<T>& values) {
  upload_bytes_once(to, device, stream, values.data(), values.size() * sizeof(T));
}

/// A RopeTable's contents in GPU memory. Empty until it is made.
class GpuRopeTable {
 public:
  static std::uint64_t num_bytes(std::uint32_t num_positions, const kernels::RopeParams& rope);

  GpuRopeTable() = default;
  GpuRopeTable(std::uint32_t num_positions, const kernels::RopeParams& rope,
               const device::CudaDevice& device, const device::DeviceStream& stream);

  const float* cos() const { return cos_.as<float>(); }  ///< [num_positions, rotary_dim / 2]
  const float* sin() const { return sin_.as<float>(); }  ///< likewise

 private:
  device::DeviceBuffer cos_, sin_;
};

}  // namespace fastfd::attention_server
