#include "cluster/offline_run.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>

namespace fastfd::cluster {
namespace {

using Clock = std::chrono::steady_clock;

// Follows a batch: all begun, first ended, all ended.
class BatchSink final : public TokenSink {
 public:
  explicit BatchSink(std::uint32_t num_requests) : num_requests_(num_requests) {}

  void on_events(std::vector<TokenEvent> events) override {
    const std::lock_guard lock(mutex_);
    for (const auto& event : events) {
      if (event.token != kNoToken) {
        ++num_tokens_;
        num_begun_ += tokens_of_[event.request]++ == 0 ? 1 : 0;
      }
      if (event.finish == FinishReason::kError) {
        error_ = event.error;
      }
      num_finished_ += event.finish != FinishReason::kNone ? 1 : 0;
    }
    changed_.notify_all();
  }

  void wait_all_begun() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_begun_ == num_requests_ || num_finished_ > 0; });
  }
  void wait_first_finished() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_finished_ > 0; });
  }
  void wait_all_finished() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_finished_ == num_requests_; });
    if (!error_.empty()) {
      throw std::runtime_error(error_);
    }
  }
  std::uint64_t num_tokens() {
    const std::lock_guard lock(mutex_);
    return num_tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::uint32_t num_requests_;
  std::uint32_t num_begun_ = 0;
  std::uint32_t num_finished_ = 0;
  std::uint64_t num_tokens_ = 0;
  std::map<RequestId, std::uint32_t> tokens_of_;
  std::string error_;
};

struct Snapshot {
  Clock::time_point time;
  double attention_compute = 0.0;
  double attention_wait = 0.0;
  double ffn_compute = 0.0;
  double ffn_wait = 0.0;
  double ffn_layers = 0.0;
  double steps = 0.0;
  double overlapped = 0.0;
  double multi_lane = 0.0;
  double tokens = 0.0;
};

Snapshot take_snapshot(const LocalCluster& cluster, const config::ClusterConfig& config,
                       BatchSink& sink) {
  Snapshot snapshot;
  snapshot.time = Clock::now();
  snapshot.tokens = static_cast<double>(sink.num_tokens());
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

}  // namespace

double OfflineRun::predicted_layer_us(double hops_us, bool colocated) const {
  if (colocated) {
    return num_lanes * (lane_attention_us + lane_ffn_us);
  }
  return std::max({num_lanes * lane_attention_us, num_lanes * lane_ffn_us,
                   lane_attention_us + lane_ffn_us + hops_us});
}

OfflineRun run_offline(LocalCluster& cluster, const Blueprint& blueprint,
                       const OfflineBenchOptions& options, std::uint32_t seed) {
  const auto& config = blueprint.config();
  std::mt19937 random(seed);
  BatchSink sink(options.batch);
  const auto start = Clock::now();
  for (std::uint32_t i = 0; i < options.batch; ++i) {
    auto request = make_request(cluster.engine().next_request_id(), options,
                                blueprint.spec().vocab_size, random);
    if (auto status = cluster.engine().submit(std::move(request), &sink); !status) {
      throw std::runtime_error(status.to_string());
    }
  }
  sink.wait_all_begun();
  const Snapshot before = take_snapshot(cluster, config, sink);
  sink.wait_first_finished();
  const Snapshot after = take_snapshot(cluster, config, sink);
  sink.wait_all_finished();

  OfflineRun run;
  run.output_tokens = sink.num_tokens();
  run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  run.tokens_per_s = static_cast<double>(run.output_tokens) / run.seconds;
  const double wall_us =
      std::chrono::duration<double, std::micro>(after.time - before.time).count();
  const double steps = std::max(1.0, after.steps - before.steps);
  const double layers = steps * blueprint.spec().num_layers;
  const double attention_servers = config.attention.servers;
  const double ffn_servers = config.ffn.servers;
  run.decode_tokens_per_s = (after.tokens - before.tokens) / wall_us * 1e6;
  const double attention_us = (after.attention_compute - before.attention_compute);
  const double ffn_us = (after.ffn_compute - before.ffn_compute);
  run.attention = {attention_us / attention_servers / wall_us,
                   (after.attention_wait - before.attention_wait) / attention_servers / wall_us};
  run.ffn = {ffn_us / ffn_servers / wall_us,
             (after.ffn_wait - before.ffn_wait) / ffn_servers / wall_us};
  run.num_lanes =
      config.is_colocated()
          ? 1.0
          : std::max(1.0, (after.ffn_layers - before.ffn_layers) / ffn_servers / layers);
  run.layer_us = wall_us / layers;
  run.lane_attention_us = attention_us / attention_servers / layers / run.num_lanes;
  run.lane_ffn_us = ffn_us / ffn_servers / layers / run.num_lanes;
  const double multi_lane = after.multi_lane - before.multi_lane;
  run.overlapped_share = multi_lane > 0 ? (after.overlapped - before.overlapped) / multi_lane : 0.0;
  return run;
}

}  // namespace fastfd::cluster
