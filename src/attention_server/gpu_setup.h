#pragma once

/// What the GPU parts of an attention server need while they are made.

#include <cstddef>
#include <vector>

#include "fastfd/device/cuda.h"

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

}  // namespace fastfd::attention_server
