#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "fastfd/cluster/blueprint.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/transport/inproc.h"
#include "ffn_server/ffn_worker.h"

namespace fastfd::cluster {

/// The baseline that disaggregation is compared with: one thread takes turns between attention and
/// experts. The attention server's loop is unchanged; where it would wait for FFN servers, its port
/// runs them. Same kernels, same plans; the hidden states still pass through a window, which costs
/// the copy of a row and hop.
class ColocatedFfn {
 public:
  ColocatedFfn(const Blueprint& blueprint, std::shared_ptr<const model::FfnWeights> weights);

  /// The attention server's port of an epoch. `fabric` joins one attention and one FFN server.
  std::shared_ptr<transport::AttentionPort> make_port(Epoch epoch,
                                                      const transport::InprocFabric& fabric);

  /// The attention half's options with the workers of this one: both run on one thread.
  attention_server::AttentionServerOptions share_workers(
      attention_server::AttentionServerOptions options) const;

  /// Any thread.
  void submit_plan(FfnStepPlan plan);

  /// Microseconds of the attention server's thread spent on experts so far.
  double compute_us() const;

 private:
  class Port;
  bool run_some(bool block);

  std::shared_ptr<device::WorkerPool> workers_;  ///< nullptr: one thread
  ffn_server::FfnWorker worker_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  Epoch epoch_ = 0;
  std::deque<FfnStepPlan> plans_;
  std::atomic<bool> abort_{false};
  std::atomic<std::uint64_t> compute_ns_{0};
};

/// Takes the FFN plans of a co-located rank whose attention half does everything else.
class ColocatedMember final : public control_plane::ServerHandler {
 public:
  using PlanSink = std::function<void(FfnStepPlan)>;
  explicit ColocatedMember(PlanSink on_ffn_plan) : on_ffn_plan_(std::move(on_ffn_plan)) {}
  Status on_topology(const control_plane::Topology& /*topology*/,
                     std::stop_token /*abandoned*/) override {
    return Status::ok();
  }
  void on_go(Epoch /*epoch*/) override {}
  void on_plan(AttentionStepPlan /*plan*/) override {}
  void on_plan(FfnStepPlan plan) override { on_ffn_plan_(std::move(plan)); }
  void on_stop(Epoch /*next_epoch*/) override {}
  void on_disconnect(const std::string& /*reason*/) override {}
  void on_shutdown() override {}
  void on_refused(const std::string& /*reason*/) override {}
  control_plane::Heartbeat heartbeat() override { return {}; }

 private:
  PlanSink on_ffn_plan_;
};

}  // namespace fastfd::cluster
