#pragma once

#include <memory>

#include "fastfd/attention_server/gpu_attention_server.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"

namespace fastfd::cluster {

/// The experts of a rank that does both halves of every layer: the baseline that disaggregation is
/// compared with. Same kernels, plans and graphs; hidden states pass through windows. Alone, a rank
/// waits for nobody and runs everything on the lane's stream. Several exchange tokens by expert
/// parallelism: each waits for the dispatches of all, and for the combines of all. A rank without
/// rows in a lane has an FFN server's loop for the others' (FfnServerOptions::colocated_with).
class GpuColocatedExperts : public attention_server::InlineExperts {
 public:
  /// The FFN server's end of the epoch that comes next. Between epochs.
  virtual void use_port(std::shared_ptr<transport::DevicePort> port) = 0;
};

/// Throws device::DeviceError if the GPU has no room, or if this build has no CUDA.
std::unique_ptr<GpuColocatedExperts> make_gpu_colocated_experts(
    const Blueprint& blueprint, ServerRank rank,
    std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu);

}  // namespace fastfd::cluster
