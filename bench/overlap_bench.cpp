// What disaggregation brings on one host: one attention and one FFN server, one thread each, with
// 1, 2 and 4 lanes, beside both roles taking turns on one thread. Runs are interleaved, so that all
// see the same machine; medians are compared as ratios.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "cluster/offline_run.h"
#include "fastfd/core/logging.h"

namespace fastfd {
namespace {

struct Contender {
  std::string name;
  std::uint32_t lanes = 1;
  std::unique_ptr<cluster::Blueprint> blueprint;
  std::unique_ptr<cluster::LocalCluster> cluster;
  std::vector<cluster::OfflineRun> runs;
};

struct Transport {
  config::TransportKind kind = config::TransportKind::kInproc;
  std::uint32_t spin_us = 50;
};

config::ClusterConfig make_config(std::uint32_t lanes, const Transport& transport,
                                  std::uint32_t batch) {
  config::ClusterConfig config;
  config.model.path = std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe";
  config.transport.kind = transport.kind;
  config.transport.spin_us = transport.spin_us;
  config.scheduler.microbatches = lanes;
  config.scheduler.max_sequences = std::max(64U, batch);
  config.attention.kv_cache.pages = 8192;
  config.attention.kv_cache.prefix_cache = false;
  return config;
}

double median_of(const std::vector<cluster::OfflineRun>& runs,
                 const std::function<double(const cluster::OfflineRun&)>& value) {
  std::vector<double> values;
  for (const auto& run : runs) {
    values.push_back(value(run));
  }
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_case(const cluster::OfflineBenchOptions& options, const Transport& transport,
              std::uint32_t repeat) {
  std::vector<Contender> contenders;
  for (const auto& [name, lanes, colocated] :
       {std::tuple("co-located, 1 thread", 1U, true), std::tuple("1A1F, 1 lane", 1U, false),
        std::tuple("1A1F, 2 lanes", 2U, false), std::tuple("1A1F, 4 lanes", 4U, false),
        std::tuple("1A1F, auto", 0U, false)}) {
    Contender& contender = contenders.emplace_back();
    contender.name = name;
    contender.lanes = lanes;
    auto config = make_config(lanes, transport, options.batch);
    contender.blueprint = std::make_unique<cluster::Blueprint>(
        colocated ? config::as_colocated(std::move(config)) : std::move(config));
    contender.cluster = std::make_unique<cluster::LocalCluster>(
        *contender.blueprint, cluster::load_cluster_weights(*contender.blueprint));
    if (!contender.cluster->wait_ready(std::chrono::seconds(30))) {
      throw std::runtime_error("cluster did not start");
    }
  }
  for (std::uint32_t round = 0; round <= repeat; ++round) {
    for (auto& contender : contenders) {
      auto run = cluster::run_offline(*contender.cluster, *contender.blueprint, options, round);
      if (round > 0) {  // the first warms caches and the page pool
        contender.runs.push_back(run);
      }
    }
  }
  const auto speed = [](const cluster::OfflineRun& run) { return run.tokens_per_s; };
  const double one_lane = median_of(contenders[1].runs, speed);
  const double colocated = median_of(contenders[0].runs, speed);
  // Both hops and the wake-ups: what a layer of one lane takes beyond computing.
  const double hops_us = std::max(0.0, median_of(contenders[1].runs, [](const auto& run) {
                                    return run.layer_us - run.lane_attention_us - run.lane_ffn_us;
                                  }));
  fmt::print("\nbatch {}, prompt {}, output {}: medians of {} interleaved runs; T_c = {:.0f} us\n",
             options.batch, options.prompt_len, options.output_len, repeat, hops_us);
  fmt::print("{:22} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>6}\n", "", "tokens/s",
             "/1 lane", "/coloc.", "A busy", "F busy", "Ta us", "Tf us", "layer us", "predicted",
             "ahead");
  for (const auto& contender : contenders) {
    const auto median = [&](auto member) {
      return median_of(contender.runs, [&](const auto& run) { return run.*member; });
    };
    const double tokens = median_of(contender.runs, speed);
    const double predicted = median_of(contender.runs, [&](const auto& run) {
      return run.predicted_layer_us(hops_us, contender.blueprint->config().is_colocated());
    });
    fmt::print(
        "{:22} {:9.0f} {:7.2f} {:7.2f} {:6.1f}% {:6.1f}% {:7.1f} {:7.1f} {:9.1f} {:9.1f} "
        "{:5.0f}%\n",
        contender.name, tokens, tokens / one_lane, tokens / colocated,
        100 * median_of(contender.runs, [](const auto& r) { return r.attention.compute; }),
        100 * median_of(contender.runs, [](const auto& r) { return r.ffn.compute; }),
        median(&cluster::OfflineRun::lane_attention_us), median(&cluster::OfflineRun::lane_ffn_us),
        median(&cluster::OfflineRun::layer_us), predicted,
        100 * median(&cluster::OfflineRun::overlapped_share));
  }
}

int run_main(int argc, char** argv) {
  CLI::App app("Overlap of the two pools, as ratios taken in one run");
  std::vector<std::uint32_t> batches{32, 64};
  std::vector<std::uint32_t> prompts{32, 256, 1024};
  std::uint32_t repeat = 5;
  bool shm = false;
  Transport transport;
  app.add_option("--batch", batches, "Sequences that run together")->capture_default_str();
  app.add_option("--prompt", prompts, "Context lengths")->capture_default_str();
  app.add_option("--repeat", repeat, "Interleaved runs")->capture_default_str();
  app.add_flag("--shm", shm, "Windows in shared memory instead of inproc");
  app.add_option("--spin-us", transport.spin_us, "Spinning before a wait sleeps")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  transport.kind = shm ? config::TransportKind::kShm : config::TransportKind::kInproc;
  init_logging("bench", "warn");
  for (const std::uint32_t prompt : prompts) {
    for (const std::uint32_t batch : batches) {
      cluster::OfflineBenchOptions options;
      options.batch = batch;
      options.prompt_len = prompt;
      options.output_len = 64;
      run_case(options, transport, repeat);
    }
  }
  return 0;
}

}  // namespace
}  // namespace fastfd

int main(int argc, char** argv) { return fastfd::run_main(argc, argv); }
