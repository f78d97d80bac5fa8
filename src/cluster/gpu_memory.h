#pragma once

#include <cstdint>
#include <string>

#include "fastfd/cluster/blueprint.h"
#include "fastfd/device/cuda.h"
#include "fastfd/device/memory_budget.h"

namespace fastfd::cluster {

/// One GPU's memory, as the servers of this process take their parts of it (`gpu_memory_fraction`
/// each). Weights first, because their size is known once they are loaded, then
///
///     GpuMemory memory(gpu.device(), weights->num_bytes());
///     const auto options = memory.attention_options(blueprint, rank, weights->num_bytes());
///     registration.num_pages = options.num_pages;
///
/// and then the server, which allocates the rest. Not thread-safe.
class GpuMemory {
 public:
  /// `loaded_bytes`: of weights that this process has on the GPU already. They belong to its
  /// servers' parts and so count as free. Throws DeviceError.
  GpuMemory(const device::CudaDevice& device, std::uint64_t loaded_bytes);

  /// The blueprint's options with the KV pages that the server's part has room for: those of
  /// `kv_cache.pages`, or as many as fit. Logs the arithmetic. Throws DeviceError with it if the
  /// part is not free or holds too little.
  attention_server::AttentionServerOptions attention_options(const Blueprint& blueprint,
                                                             ServerRank rank,
                                                             std::uint64_t weights_bytes);
  /// The same of a co-located rank: both halves' parts, weights, workspaces and windows.
  attention_server::AttentionServerOptions colocated_options(const Blueprint& blueprint,
                                                             ServerRank rank,
                                                             std::uint64_t attention_bytes,
                                                             std::uint64_t ffn_bytes);
  /// As attention_options, of a server that has no KV pages.
  ffn_server::FfnServerOptions ffn_options(const Blueprint& blueprint, ServerRank rank,
                                           std::uint64_t weights_bytes);

 private:
  device::MemoryBudget take(const std::string& name, const device::MemoryDemand& demand);

  device::CudaDevice device_;
  device::DeviceMemory memory_;  // free: by nobody's part yet
};

}  // namespace fastfd::cluster
