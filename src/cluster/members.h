#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "fastfd/cluster/blueprint.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/core/status.h"

namespace fastfd::cluster {

/// How a member gets its data plane for an epoch: shm endpoints, or an in-process fabric.
template <typename Port>
using Connect = std::function<Result<std::shared_ptr<Port>>(const control_plane::Topology& topology,
                                                            std::stop_token abandoned)>;

/// An attention server as the control plane drives it: weights, loop, and the epochs between them.
class AttentionMember final : public control_plane::ServerHandler {
 public:
  AttentionMember(const Blueprint& blueprint, ServerRank rank,
                  std::shared_ptr<const model::AttentionWeights> weights,
                  Connect<transport::AttentionPort> connect, attention_server::ResultSink on_result,
                  attention_server::FailureSink on_failure);

  Status on_topology(const control_plane::Topology& topology, std::stop_token abandoned) override;
  void on_go(Epoch epoch) override;
  void on_plan(AttentionStepPlan plan) override;
  void on_plan(FfnStepPlan plan) override;
  void on_stop(Epoch next_epoch) override;
  void on_disconnect(const std::string& reason) override;
  void on_shutdown() override;
  void on_refused(const std::string& reason) override;
  control_plane::Heartbeat heartbeat() override;

  /// Why the coordinator refused this server; empty if it did not.
  std::string refusal() const;

 private:
  Connect<transport::AttentionPort> connect_;
  mutable std::mutex mutex_;
  std::shared_ptr<transport::AttentionPort> port_;
  ExpertPlacement placement_;
  std::string refusal_;
  attention_server::AttentionServer server_;  // last: its loop uses the sinks
};

/// The same for an FFN server.
class FfnMember final : public control_plane::ServerHandler {
 public:
  FfnMember(const Blueprint& blueprint, ServerRank rank,
            std::shared_ptr<const model::FfnWeights> weights, Connect<transport::FfnPort> connect,
            ffn_server::FailureSink on_failure);

  Status on_topology(const control_plane::Topology& topology, std::stop_token abandoned) override;
  void on_go(Epoch epoch) override;
  void on_plan(AttentionStepPlan plan) override;
  void on_plan(FfnStepPlan plan) override;
  void on_stop(Epoch next_epoch) override;
  void on_disconnect(const std::string& reason) override;
  void on_shutdown() override;
  void on_refused(const std::string& reason) override;
  control_plane::Heartbeat heartbeat() override;

  std::string refusal() const;
  FfnLoad load() const { return server_.load(); }

 private:
  Connect<transport::FfnPort> connect_;
  mutable std::mutex mutex_;
  std::shared_ptr<transport::FfnPort> port_;
  std::string refusal_;
  ffn_server::FfnServer server_;
};

}  // namespace fastfd::cluster
