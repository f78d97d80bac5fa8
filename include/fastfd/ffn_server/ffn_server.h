#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "fastfd/core/expert_placement.h"
#include "fastfd/core/server_loop.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/device/cpu.h"
#include "fastfd/model/model.h"
#include "fastfd/transport/port.h"

namespace fastfd::ffn_server {

struct FfnServerOptions {
  ServerRank rank = 0;
  Precision precision = Precision::kBFloat16;
  DType dispatch_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
  std::uint32_t threads = 1;
  std::chrono::microseconds worker_spin{0};  ///< see device::WorkerPool
  /// Shared with another loop on the same thread (co-located); nullptr: `threads` of its own.
  std::shared_ptr<device::WorkerPool> workers = nullptr;
  bool fetches_while_waiting = false;  ///< see attention_server::AttentionServerOptions
  std::uint32_t max_lane_rows = 512;   ///< of one attention server
  std::uint32_t num_attention_servers = 1;
  /// GPU: graphs are captured for lanes of up to so many rows of all attention servers; 0: none.
  std::uint32_t max_graph_rows = 0;
  /// GPU, co-located: lanes in which this attention server takes part are run on its streams
  /// (InlineExperts), not here.
  std::optional<ServerRank> colocated_with = std::nullopt;
};

using FailureSink = std::function<void(Status)>;

/// Experts of one rank, all layers, and no request state. Its loop runs whichever (layer, lane) is
/// complete first, over the tokens of all participants, and answers each.
class FfnServer final : public ServerLoop {
 public:
  FfnServer(const FfnServerOptions& options, const model::ModelSpec& spec,
            std::shared_ptr<const model::FfnWeights> weights, FailureSink on_failure);
  ~FfnServer() override;  ///< stops the loop; blocks until its thread has ended
  FfnServer(const FfnServer&) = delete;
  FfnServer& operator=(const FfnServer&) = delete;

  /// Serves plans of `epoch` through `port`. Requires that no epoch is active.
  void begin_epoch(Epoch epoch, std::shared_ptr<transport::FfnPort> port);

  void submit_plan(FfnStepPlan plan);

  void stop_epoch() override;
  ServerProgress progress() const override;
  FfnLoad load() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::ffn_server
