#include "fastfd/cluster/offline_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "cluster/offline_run.h"
#include "fastfd/cluster/local_cluster.h"
#include "fastfd/device/cuda.h"

namespace fastfd::cluster {
namespace {

void print_table(const config::ClusterConfig& config, const OfflineBenchOptions& options,
                 const OfflineRun& run) {
  fmt::print("{} attention x {} FFN servers{}, {:.1f} lanes, batch {}, prompt {}, output {}\n",
             config.attention.servers, config.ffn.servers,
             config.is_colocated() ? ", co-located" : "", run.num_lanes, options.batch,
             options.prompt_len, options.output_len);
  fmt::print("  output tokens/s        {:10.1f}\n", run.tokens_per_s);
  fmt::print("  seconds                {:10.3f}\n", run.seconds);
  fmt::print("steady decode\n");
  fmt::print("  output tokens/s        {:10.1f}\n", run.decode_tokens_per_s);
  fmt::print("  attention pool         {:9.1f}% computing {:6.1f}% waiting\n",
             100 * run.attention.compute, 100 * run.attention.wait);
  fmt::print("  FFN pool               {:9.1f}% computing {:6.1f}% waiting\n",
             100 * run.ffn.compute, 100 * run.ffn.wait);
  fmt::print("  lane and layer         {:10.1f} us attention, {:.1f} us FFN\n",
             run.lane_attention_us, run.lane_ffn_us);
  fmt::print("  layer, measured        {:10.1f} us\n", run.layer_us);
  fmt::print("  layer, predicted       {:10.1f} us without hops\n",
             run.predicted_layer_us(0.0, config.is_colocated()));
  fmt::print("  lane 0 ahead           {:9.1f}% of steps with several lanes\n",
             100 * run.overlapped_share);
}

void print_json(const config::ClusterConfig& config, const OfflineBenchOptions& options,
                const OfflineRun& run) {
  const nlohmann::json json = {
      {"attention_servers", config.attention.servers},
      {"ffn_servers", config.ffn.servers},
      {"colocated", config.is_colocated()},
      {"lanes", run.num_lanes},
      {"batch", options.batch},
      {"prompt_len", options.prompt_len},
      {"output_len", options.output_len},
      {"output_tokens", run.output_tokens},
      {"seconds", run.seconds},
      {"output_tokens_per_s", run.tokens_per_s},
      {"decode_tokens_per_s", run.decode_tokens_per_s},
      {"attention_compute_share", run.attention.compute},
      {"attention_wait_share", run.attention.wait},
      {"ffn_compute_share", run.ffn.compute},
      {"ffn_wait_share", run.ffn.wait},
      {"lane_attention_us", run.lane_attention_us},
      {"lane_ffn_us", run.lane_ffn_us},
      {"layer_us", run.layer_us},
      {"predicted_layer_us", run.predicted_layer_us(0.0, config.is_colocated())},
      {"overlapped_share", run.overlapped_share}};
  fmt::print("{}\n", json.dump());
}

void run_bench(const config::ClusterConfig& config, const OfflineBenchOptions& options) {
  if (config.on_gpus()) {
    device::set_cuda_environment();  // read at the first CUDA call; no thread runs yet
  }
  const Blueprint blueprint(config);
  if (options.prompt_len + options.output_len > blueprint.max_model_len()) {
    throw std::invalid_argument(
        fmt::format("prompt {} + output {} tokens are more than the model's {}; lower one",
                    options.prompt_len, options.output_len, blueprint.max_model_len()));
  }
  const ClusterWeights weights = load_cluster_weights(blueprint);
  LocalCluster cluster(blueprint, weights, {.grpc = false});
  if (!cluster.wait_ready(std::chrono::seconds(30))) {
    throw std::runtime_error("the cluster did not start: " + cluster.engine().state().detail);
  }
  OfflineBenchOptions warmup = options;
  warmup.prompt_len = std::min(options.prompt_len, 256U);
  warmup.output_len = std::min(options.output_len, 8U);
  run_offline(cluster, blueprint, warmup, 0);
  std::vector<OfflineRun> runs;
  for (std::uint32_t i = 0; i < std::max(1U, options.repeat); ++i) {
    runs.push_back(run_offline(cluster, blueprint, options, i + 1));
  }
  std::sort(runs.begin(), runs.end(), [](const OfflineRun& a, const OfflineRun& b) {
    return a.tokens_per_s < b.tokens_per_s;
  });
  const OfflineRun& median = runs[runs.size() / 2];
  if (options.json) {
    print_json(config, options, median);
  } else {
    print_table(config, options, median);
  }
}

}  // namespace

int run_offline_bench(const config::ClusterConfig& config, const OfflineBenchOptions& options) {
  try {
    run_bench(config, options);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fastfd bench offline: {}\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace fastfd::cluster
