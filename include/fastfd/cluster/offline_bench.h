#pragma once

#include <cstdint>

#include "fastfd/config/cluster_config.h"

namespace fastfd::cluster {

/// What `fastfd bench offline` runs: the engine alone, no HTTP.
struct OfflineBenchOptions {
  std::uint32_t batch = 32;       ///< sequences that run together
  std::uint32_t prompt_len = 32;  ///< tokens of each prompt
  std::uint32_t output_len = 64;  ///< tokens generated for each sequence
  std::uint32_t repeat = 1;       ///< runs; the median is reported
  bool json = false;              ///< print one JSON object instead of the table
};

/// Runs the cluster in this process and prints tokens/s and, for each pool, the share of time it
/// computed and waited. Returns the exit status of the process.
int run_offline_bench(const config::ClusterConfig& config, const OfflineBenchOptions& options);

}  // namespace fastfd::cluster
