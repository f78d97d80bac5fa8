#pragma once

#include <memory>

#include "cluster/server_process.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/model/model.h"

namespace fastfd::cluster {

// The weights of a server process, and one line about them in its log. Throw as model.h and
// device_weights.h say.

std::shared_ptr<const model::AttentionWeights> load_attention(const ServerProcess& process);
std::shared_ptr<const model::FfnWeights> load_ffn(const ServerProcess& process);
std::shared_ptr<const model::DeviceAttentionWeights> upload_attention(
    const ServerProcess& process, const device::CudaDevice& device);
std::shared_ptr<const model::DeviceFfnWeights> upload_ffn(const ServerProcess& process,
                                                          const device::CudaDevice& device);

/// The server's GPU and its part of the SMs; current on the calling thread.
device::GpuPart open_gpu(const ServerProcess& process, Role role);

}  // namespace fastfd::cluster
