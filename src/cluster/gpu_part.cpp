#include "cluster/gpu_part.h"

#include <algorithm>
#include <vector>

namespace fastfd::cluster {

device::GpuPart gpu_part(const config::ClusterConfig& config, Role role, ServerRank rank) {
  if (config.is_colocated()) {
    role = Role::kAttention;  // an FFN server has its rank's
  }
  const auto& pool_device = role == Role::kAttention ? config.attention.device : config.ffn.device;
  const std::uint32_t gpu = pool_device.gpu_of(rank);
  std::vector<double> shares;
  std::size_t index = 0;
  const auto add_pool = [&](Role pool_role, const auto& pool) {
    for (ServerRank r = 0; pool.device.is_cuda && r < pool.servers; ++r) {
      if (pool.device.gpu_of(r) != gpu) {
        continue;
      }
      if (pool_role == role && r == rank) {
        index = shares.size();
      }
      shares.push_back(pool.gpu.sm_share);
    }
  };
  add_pool(Role::kAttention, config.attention);
  if (!config.is_colocated()) {
    add_pool(Role::kFfn, config.ffn);
  }
  const auto device = device::CudaDevice::open(gpu);
  if (std::all_of(shares.begin(), shares.end(), [](double share) { return share >= 1.0; })) {
    return device::GpuPart(device, static_cast<std::uint32_t>(shares.size()));
  }
  return {device, shares, index};
}

}  // namespace fastfd::cluster
