#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "fastfd/core/expert_placement.h"
#include "fastfd/core/server_loop.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/device/cpu.h"
#include "fastfd/model/model.h"
#include "fastfd/transport/port.h"

namespace fastfd::attention_server {

struct AttentionServerOptions {
  ServerRank rank = 0;
  Precision precision = Precision::kBFloat16;
  DType dispatch_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
  std::uint32_t threads = 1;
  std::chrono::microseconds worker_spin{0};  ///< see device::WorkerPool
  /// Shared with another loop on the same thread (co-located); nullptr: `threads` of its own.
  std::shared_ptr<device::WorkerPool> workers = nullptr;
  /// CPU: brings the next weights into the cache before it sleeps. Not where threads share cores,
  /// nor co-located: others could compute meanwhile.
  bool fetches_while_waiting = false;
  std::uint32_t num_pages = 2048;
  std::uint32_t page_size = 16;
  DType kv_dtype = DType::kBFloat16;
  std::uint32_t num_slots = 128;  ///< scheduler::Scheduler::slots_per_server
  std::uint32_t max_lane_rows = 512;
  std::uint32_t max_model_len = 2048;
  std::uint32_t num_ffn_servers = 1;
  /// GPU: graphs are captured for lanes of up to so many decode rows; 0: none.
  std::uint32_t max_graph_rows = 0;
};

/// Takes each lane's result; called on the server's loop thread, must not block for long.
using ResultSink = std::function<void(LaneResult)>;
/// Takes the one error that ends an epoch from this side: a plan that makes no sense, a kernel that
/// failed. The loop has stopped; the coordinator decides what follows.
using FailureSink = std::function<void(Status)>;

/// Paged KV cache, attention weights, router, LM head and sampling of one rank, and the layer
/// loop on a thread of its own. Starts idle: no epoch, no plans.
class AttentionServer final : public ServerLoop {
 public:
  AttentionServer(const AttentionServerOptions& options, const model::ModelSpec& spec,
                  std::shared_ptr<const model::AttentionWeights> weights, ResultSink on_result,
                  FailureSink on_failure);
  ~AttentionServer() override;  ///< stops the loop; blocks until its thread has ended
  AttentionServer(const AttentionServer&) = delete;
  AttentionServer& operator=(const AttentionServer&) = delete;

  /// Forgets all sequences and serves plans of `epoch` through `port`. Requires that no epoch is
  /// active (the first, or after stop_epoch).
  void begin_epoch(Epoch epoch, std::shared_ptr<transport::AttentionPort> port,
                   ExpertPlacement placement);

  /// Plans of another epoch are dropped.
  void submit_plan(AttentionStepPlan plan);

  void stop_epoch() override;
  ServerProgress progress() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::attention_server
