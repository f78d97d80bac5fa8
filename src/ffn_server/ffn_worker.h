#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fastfd/core/lane_progress.h"
#include "fastfd/device/cache_fetch.h"
#include "fastfd/device/cpu.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "kernels/expert_ffn/op.h"

namespace fastfd::ffn_server {

/// The FFN server without its thread: one cursor a lane, and the work of one hop. FfnServer gives
/// it a thread; a co-located server calls it from the attention server's. Not thread-safe.
class FfnWorker {
 public:
  FfnWorker(const FfnServerOptions& options, const model::ModelSpec& spec,
            std::shared_ptr<const model::FfnWeights> weights);

  /// Drops all plans and serves `epoch` through `port`.
  void begin_epoch(Epoch epoch, transport::FfnPort* port, const std::atomic<bool>* abort);

  /// Plans come in step order.
  void add_plan(const FfnStepPlan& plan);

  /// True while a planned (step, lane) is not finished.
  bool has_work() const;

  enum class Outcome : std::uint8_t { kRan, kNothingReady };
  /// Runs the complete hop with the lowest (step, layer), if there is one.
  Result<Outcome> run_ready();

  /// While nothing is ready: brings what the hop that is furthest behind will read into the cache,
  /// until `stop()`. Only where that is known: of dense slices, or if all experts fit.
  template <typename Stop>
  void fetch_next_weights(Stop stop) {
    if (const auto lane = pick_next()) {
      const auto next = hop(*lane);
      cache_fetch_.run(next.step * num_layers_ + next.layer, weights_by_layer_[next.layer], stop);
    }
  }

  /// Who has not sent what the lanes at work wait for; for logs.
  std::string describe_waits() const;

  /// Any thread.
  ServerProgress progress() const { return progress_.read(); }
  const std::atomic<std::uint64_t>& layers_run() const { return layers_run_; }
  const std::atomic<std::uint64_t>& rows_run() const { return rows_run_; }

 private:
  struct LaneWork {
    StepId step = 0;
    ServerMask participants = 0;
  };
  struct Lane {
    std::deque<LaneWork> steps;
    std::uint32_t layer = 0;  // of steps.front()
  };

  transport::HopId hop(LaneId lane) const;
  std::optional<LaneId> pick_ready() const;
  std::optional<LaneId> pick_next() const;
  template <typename Accept>
  std::optional<LaneId> furthest_behind(Accept accept) const;
  Status gather(const transport::HopId& hop, ServerMask participants);
  Status run(LaneId lane);

  FfnServerOptions options_;
  std::uint32_t num_layers_;
  std::uint32_t hidden_dim_;
  std::uint32_t max_routes_per_row_;
  std::shared_ptr<const model::FfnWeights> weights_;
  std::shared_ptr<device::WorkerPool> workers_;
  device::CpuStream stream_;
  kernels::ExpertFfnScratch scratch_;
  std::vector<device::MemoryRanges> weights_by_layer_;  // what is worth fetching
  device::CacheFetch cache_fetch_;

  Epoch epoch_ = 0;
  transport::FfnPort* port_ = nullptr;
  const std::atomic<bool>* abort_ = nullptr;
  std::array<Lane, kMaxLanes> lanes_;
  LaneProgressBoard progress_;
  std::atomic<std::uint64_t> layers_run_{0};
  std::atomic<std::uint64_t> rows_run_{0};

  // All participants' tokens of one hop, one after the other.
  std::uint32_t num_tokens_ = 0;
  std::vector<const void*> token_rows_;       // [num_tokens_]
  std::vector<void*> out_rows_;               // [num_tokens_]
  std::vector<std::uint32_t> route_offsets_;  // [num_tokens_ + 1]
  std::vector<std::uint32_t> route_experts_;
  std::vector<float> route_weights_;
  std::array<std::uint32_t, kMaxServers> rows_of_{};  // by attention rank
};

}  // namespace fastfd::ffn_server
