#include <algorithm>

#include "config/model_folder.h"
#include "config/validate.h"
#include "fastfd/config/cluster_config.h"

namespace fastfd::config {
namespace {

/// Workers of one operator that still pay on CPU; more cores go to further servers.
constexpr std::uint32_t kMostThreadsPerServer = 8;

struct Pool {
  std::uint32_t servers;
  std::uint32_t threads;
};

Pool split_cores(std::uint32_t num_cores, std::uint32_t most_servers) {
  const std::uint32_t wanted = (num_cores + kMostThreadsPerServer - 1) / kMostThreadsPerServer;
  const std::uint32_t servers = std::clamp(wanted, 1U, most_servers);
  return {servers, std::max(1U, num_cores / servers)};
}

}  // namespace

ClusterConfig default_cluster(const std::filesystem::path& model, const HostFacts& host,
                              LoadFormat load_format) {
  constexpr std::uint32_t kMostServers = 16;
  constexpr std::uint32_t kMostModelLen = 32768;  // what the default page pool holds

  Problems problems("fastfd serve");
  ClusterConfig config;
  config.model.path = model;
  config.model.load_format = load_format;
  std::string problem;
  resolve_model(config.model, problem);
  const ModelLimits limits =
      problem.empty() ? read_model_limits(config.model.path, problem) : ModelLimits();
  if (!problem.empty()) {
    throw ConfigError("fastfd serve: MODEL: " + problem);
  }
  config.model.precision = host.has_bf16 ? Precision::kBFloat16 : Precision::kFloat32;
  config.model.max_model_len = std::min(limits.max_positions.value_or(0), kMostModelLen);
  config.attention.kv_cache.dtype = cpu_activations(config.model.precision);
  config.transport.dispatch_dtype = cpu_activations(config.model.precision);

  // Half of the cores to each pool, an odd one to the FFN servers, which do most of the
  // arithmetic; from three cores on the coordinator and the spinning threads have one of their own.
  const std::uint32_t usable = host.num_cores > 2 ? host.num_cores - 1 : host.num_cores;
  const Pool attention = split_cores(std::max(1U, usable / 2), kMostServers);
  const Pool ffn = split_cores(std::max(1U, usable - usable / 2),
                               std::min(kMostServers, limits.num_experts.value_or(kMostServers)));
  config.attention.servers = attention.servers;
  config.attention.threads = attention.threads;
  config.ffn.servers = ffn.servers;
  config.ffn.threads = ffn.threads;
  config.transport.spin_us = host.num_cores > num_server_threads(config) ? 50 : 0;
  validate(config, host, limits, problems);
  problems.raise_if_any();
  return config;
}

}  // namespace fastfd::config
