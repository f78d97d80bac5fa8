#pragma once

#include "config/model_folder.h"
#include "config/problems.h"
#include "fastfd/config/cluster_config.h"

namespace fastfd::config {

/// Most server threads on one host, as a multiple of its cores. Servers take turns on a core, which
/// small examples live with; beyond this every token waits for dozens of thread switches a layer.
inline constexpr std::uint32_t kMostThreadsPerCore = 16;

/// Most KV pages of an attention server that a file can ask for.
inline constexpr std::uint32_t kMostPages = 1U << 24;

/// Checks that combine several keys, or a key and the host or the model.
void validate(const ClusterConfig& config, const HostFacts& host, const ModelLimits& model,
              Problems& problems);

/// What a co-located cluster asks of the keys of its pools. Part of validate().
void check_topology(const ClusterConfig& config, Problems& problems);

/// What CPU servers send and cache with `precision`: float32 stays exact, and in bf16 precision the
/// next operator rounds anyway.
DType cpu_activations(Precision precision);

/// Servers of both pools that run on GPU `gpu`.
std::uint32_t num_servers_on_gpu(const ClusterConfig& config, std::uint32_t gpu);

/// Threads of all servers of both pools.
std::uint64_t num_server_threads(const ClusterConfig& config);

}  // namespace fastfd::config
