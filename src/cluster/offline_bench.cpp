#include "fastfd/cluster/offline_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/logging.h"

namespace fastfd::cluster {
namespace {

using Clock = std::chrono::steady_clock;

// Counts the tokens of a batch and wakes whoever waits for its end.
class BatchSink final : public TokenSink {
 public:
  explicit BatchSink(std::uint32_t num_requests) : num_running_(num_requests) {}

  void on_events(std::vector<TokenEvent> events) override {
    const std::lock_guard lock(mutex_);
    for (const auto& event : events) {
      num_tokens_ += event.token != kNoToken ? 1 : 0;
      if (event.finish == FinishReason::kError) {
        error_ = event.error;
      }
      if (event.finish != FinishReason::kNone && --num_running_ == 0) {
        finished_.notify_all();
      }
    }
  }

  // Returns the number of tokens. Throws std::runtime_error if a request failed.
  std::uint64_t wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return num_running_ == 0; });
    if (!error_.empty()) {
      throw std::runtime_error(error_);
    }
    return num_tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::uint32_t num_running_;
  std::uint64_t num_tokens_ = 0;
  std::string error_;
};

// Shares of one run's wall time.
struct PoolShare {
  double compute = 0.0;
  double wait = 0.0;
};

struct Run {
  double seconds = 0.0;
  double tokens_per_s = 0.0;
  std::uint64_t output_tokens = 0;
  PoolShare attention;  // mean over servers
  PoolShare ffn;
  double layer_us = 0.0;            // wall time of a decode layer, all lanes
  double predicted_layer_us = 0.0;  // max(B T_a, B T_f, T_a + T_f + T_c)
  double overlapped_share = 0.0;    // of the steps that could overlap
  double num_lanes = 0.0;
};

struct Snapshot {
  double attention_compute = 0.0;
  double attention_wait = 0.0;
  double ffn_compute = 0.0;
  double ffn_wait = 0.0;
  double ffn_layers = 0.0;
  double steps = 0.0;
  double overlapped = 0.0;
  double multi_lane = 0.0;
};

Snapshot take_snapshot(const LocalCluster& cluster, const config::ClusterConfig& config) {
  Snapshot snapshot;
  for (ServerRank rank = 0; rank < config.attention.servers; ++rank) {
    snapshot.attention_compute += cluster.attention_compute_us(rank);
    snapshot.attention_wait += cluster.attention_wait_us(rank);
  }
  for (ServerRank rank = 0; rank < config.ffn.servers; ++rank) {
    const FfnLoad load = cluster.ffn_load(rank);
    snapshot.ffn_compute += load.compute_us;
    snapshot.ffn_wait += load.wait_us;
    snapshot.ffn_layers += static_cast<double>(load.layers_run);
  }
  snapshot.ffn_compute += cluster.colocated_ffn_us();
  snapshot.steps = cluster.metric("fastfd_steps_committed_total");
  snapshot.overlapped = cluster.metric("fastfd_overlapped_steps_total");
  snapshot.multi_lane = cluster.metric("fastfd_multi_lane_steps_total");
  return snapshot;
}

Request make_request(RequestId id, const OfflineBenchOptions& options, std::uint32_t vocab_size,
                     std::mt19937& random) {
  Request request;
  request.id = id;
  std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(vocab_size) - 1);
  for (std::uint32_t i = 0; i < options.prompt_len; ++i) {
    request.prompt.push_back(token(random));
  }
  request.sampling.temperature = 0.0F;
  request.sampling.ignore_eos = true;
  request.max_tokens = options.output_len;
  request.arrival = Clock::now();
  return request;
}

Run run_once(LocalCluster& cluster, const Blueprint& blueprint, const OfflineBenchOptions& options,
             std::uint32_t seed) {
  const auto& config = blueprint.config();
  std::mt19937 random(seed);
  BatchSink sink(options.batch);
  const Snapshot before = take_snapshot(cluster, config);
  const auto start = Clock::now();
  for (std::uint32_t i = 0; i < options.batch; ++i) {
    auto request = make_request(cluster.engine().next_request_id(), options,
                                blueprint.spec().vocab_size, random);
    if (auto status = cluster.engine().submit(std::move(request), &sink); !status) {
      throw std::runtime_error(status.to_string());
    }
  }
  Run run;
  run.output_tokens = sink.wait();
  run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const Snapshot after = take_snapshot(cluster, config);
  const double wall_us = run.seconds * 1e6;
  const double attention_wall = wall_us * config.attention.servers;
  const double ffn_wall = wall_us * (options.colocated ? 1 : config.ffn.servers);
  run.tokens_per_s = static_cast<double>(run.output_tokens) / run.seconds;
  run.attention = {(after.attention_compute - before.attention_compute) / attention_wall,
                   (after.attention_wait - before.attention_wait) / attention_wall};
  run.ffn = {(after.ffn_compute - before.ffn_compute) / ffn_wall,
             (after.ffn_wait - before.ffn_wait) / ffn_wall};
  const double layers = (after.steps - before.steps) * blueprint.spec().num_layers;
  run.layer_us = wall_us / layers;
  run.num_lanes = options.colocated
                      ? 1.0
                      : (after.ffn_layers - before.ffn_layers) / config.ffn.servers / layers;
  const double attention_us = run.attention.compute * wall_us / layers;
  const double ffn_us = run.ffn.compute * wall_us / layers;
  // T of one lane is a pool's time of a layer over B; T_c is not measured apart here and left out.
  run.predicted_layer_us = options.colocated
                               ? attention_us + ffn_us
                               : std::max({attention_us, ffn_us,
                                           (attention_us + ffn_us) / std::max(1.0, run.num_lanes)});
  const double multi_lane = after.multi_lane - before.multi_lane;
  run.overlapped_share = multi_lane > 0 ? (after.overlapped - before.overlapped) / multi_lane : 0.0;
  return run;
}

void print_table(const config::ClusterConfig& config, const OfflineBenchOptions& options,
                 const Run& run) {
  fmt::print("{} attention x {} FFN servers{}, {} lanes, batch {}, prompt {}, output {}\n",
             config.attention.servers, config.ffn.servers,
             options.colocated ? ", co-located on one thread" : "",
             fmt::format("{:.1f}", run.num_lanes), options.batch, options.prompt_len,
             options.output_len);
  fmt::print("  output tokens/s        {:10.1f}\n", run.tokens_per_s);
  fmt::print("  seconds                {:10.3f}\n", run.seconds);
  fmt::print("  attention pool         {:9.1f}% computing {:6.1f}% waiting\n",
             100 * run.attention.compute, 100 * run.attention.wait);
  fmt::print("  FFN pool               {:9.1f}% computing {:6.1f}% waiting\n",
             100 * run.ffn.compute, 100 * run.ffn.wait);
  fmt::print("  layer, measured        {:10.1f} us\n", run.layer_us);
  fmt::print("  layer, predicted       {:10.1f} us = max(B Ta, B Tf, Ta + Tf)\n",
             run.predicted_layer_us);
  fmt::print("  lane 0 ahead           {:9.1f}% of steps with several lanes\n",
             100 * run.overlapped_share);
}

void print_json(const config::ClusterConfig& config, const OfflineBenchOptions& options,
                const Run& run) {
  const nlohmann::json json = {{"attention_servers", config.attention.servers},
                               {"ffn_servers", config.ffn.servers},
                               {"colocated", options.colocated},
                               {"lanes", run.num_lanes},
                               {"batch", options.batch},
                               {"prompt_len", options.prompt_len},
                               {"output_len", options.output_len},
                               {"output_tokens", run.output_tokens},
                               {"seconds", run.seconds},
                               {"output_tokens_per_s", run.tokens_per_s},
                               {"attention_compute_share", run.attention.compute},
                               {"attention_wait_share", run.attention.wait},
                               {"ffn_compute_share", run.ffn.compute},
                               {"ffn_wait_share", run.ffn.wait},
                               {"layer_us", run.layer_us},
                               {"predicted_layer_us", run.predicted_layer_us},
                               {"overlapped_share", run.overlapped_share}};
  fmt::print("{}\n", json.dump());
}

void run_bench(const config::ClusterConfig& config, const OfflineBenchOptions& options) {
  const Blueprint blueprint(config);
  if (options.prompt_len + options.output_len > blueprint.max_model_len()) {
    throw std::invalid_argument(
        fmt::format("prompt {} + output {} tokens are more than the model's {}; lower one",
                    options.prompt_len, options.output_len, blueprint.max_model_len()));
  }
  const ClusterWeights weights = load_cluster_weights(blueprint);
  LocalCluster cluster(blueprint, weights, {.colocated = options.colocated});
  if (!cluster.wait_ready(std::chrono::seconds(30))) {
    throw std::runtime_error("the cluster did not start: " + cluster.engine().state().detail);
  }
  OfflineBenchOptions warmup = options;
  warmup.output_len = std::min(options.output_len, 8U);
  run_once(cluster, blueprint, warmup, 0);
  std::vector<Run> runs;
  for (std::uint32_t i = 0; i < std::max(1U, options.repeat); ++i) {
    runs.push_back(run_once(cluster, blueprint, options, i + 1));
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.tokens_per_s < b.tokens_per_s; });
  const Run& median = runs[runs.size() / 2];
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
