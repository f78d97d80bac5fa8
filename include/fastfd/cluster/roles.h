#pragma once

/// The three roles as processes: what `fastfd launch` starts. Each function blocks until SIGINT or
/// SIGTERM has been handled (the coordinator drains first; a server goes on until the coordinator
/// is done, for the drain time and a second at most) and returns the exit status of the process: 0
/// after a clean stop, 1 when the role could not start or was refused at the handshake.

#include "fastfd/config/cluster_config.h"
#include "fastfd/core/ids.h"

namespace fastfd::cluster {

/// Throws what the roles would throw for this model and configuration: config::ConfigError,
/// model::ModelError, TextError. Reads no tensor data.
void check_servable(const config::ClusterConfig& config);

/// Gateway, scheduler and control plane. The HTTP port is bound before anything else.
int run_coordinator(const config::ClusterConfig& config);

/// Attention server `rank` of config.attention.servers.
int run_attention_server(const config::ClusterConfig& config, ServerRank rank);

/// FFN server `rank` of config.ffn.servers.
int run_ffn_server(const config::ClusterConfig& config, ServerRank rank);

/// Rank `rank` of a co-located cluster: both of the above in one process.
int run_colocated_server(const config::ClusterConfig& config, ServerRank rank);

}  // namespace fastfd::cluster
