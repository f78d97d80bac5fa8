#pragma once

#include "fastfd/config/cluster_config.h"
#include "fastfd/core/ids.h"
#include "fastfd/device/gpu_part.h"

namespace fastfd::cluster {

/// The GPU of a server and its part of the SMs. Servers of one GPU take theirs in order, attention
/// servers first, so each finds the same split by itself; both halves of a co-located rank have
/// one. Throws DeviceError; makes the GPU current on the calling thread.
device::GpuPart gpu_part(const config::ClusterConfig& config, Role role, ServerRank rank);

}  // namespace fastfd::cluster
