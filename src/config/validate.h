#pragma once

#include "config/model_folder.h"
#include "config/problems.h"
#include "fastfd/config/cluster_config.h"

namespace fastfd::config {

/// Most server threads on one host, as a multiple of its cores. Servers take turns on a core, which
/// small examples live with; beyond this every token waits for dozens of thread switches a layer.
inline constexpr std::uint32_t kMostThreadsPerCore = 16;

/// Checks that combine several keys, or a key and the host or the model.
void validate(const ClusterConfig& config, const HostFacts& host, const ModelLimits& model,
              Problems& problems);

/// Servers of both pools that run on GPU `gpu`.
std::uint32_t num_servers_on_gpu(const ClusterConfig& config, std::uint32_t gpu);

/// Threads of all servers of both pools.
std::uint64_t num_server_threads(const ClusterConfig& config);

}  // namespace fastfd::config
