#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/attention_server/gpu_attention_server.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/core/check.h"
#include "fastfd/core/logging.h"
#include "fastfd/core/status.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/ffn_server/gpu_ffn_server.h"

namespace fastfd::cluster {

/// How a member gets its data plane for an epoch: an endpoint, or an in-process fabric.
template <typename Port>
using Connect = std::function<Result<std::shared_ptr<Port>>(const control_plane::Topology& topology,
                                                            std::stop_token abandoned)>;

/// A server as the control plane drives it, whatever its role and device: the loop, and what
/// happens between its epochs.
template <typename Server, typename Port>
class Member : public control_plane::ServerHandler {
 public:
  Status on_topology(const control_plane::Topology& topology, std::stop_token abandoned) override {
    // The protocol has stopped it already; but a GPU's windows come and go only while none of its
    // kernels waits, and that must not hang on a message.
    server_.stop_epoch();
    auto port = connect_(topology, std::move(abandoned));
    if (!port) {
      return port.status();
    }
    const std::lock_guard lock(mutex_);
    port_ = *std::move(port);
    placement_ = topology.placement.make();
    return Status::ok();
  }

  void on_stop(Epoch /*next_epoch*/) override { server_.stop_epoch(); }
  void on_disconnect(const std::string& reason) override {
    spdlog::warn("lost the coordinator: {}", reason);
    server_.stop_epoch();
  }
  void on_shutdown() override { server_.stop_epoch(); }
  void on_refused(const std::string& /*reason*/) override { server_.stop_epoch(); }

 protected:
  /// `server_arguments`: of Server's constructor.
  template <typename... Args>
  explicit Member(Connect<Port> connect, Args&&... server_arguments)
      : connect_(std::move(connect)), server_(std::forward<Args>(server_arguments)...) {}

  /// What on_topology made for the epoch that goes now.
  std::pair<std::shared_ptr<Port>, ExpertPlacement> take_epoch(Epoch epoch) {
    const std::lock_guard lock(mutex_);
    auto port = std::exchange(port_, nullptr);
    check(port != nullptr, "an epoch starts without a data plane");
    spdlog::info("epoch {} begins", epoch);
    return {std::move(port), placement_};
  }
  Server& server() { return server_; }
  const Server& server() const { return server_; }

 private:
  Connect<Port> connect_;
  std::mutex mutex_;
  std::shared_ptr<Port> port_;
  ExpertPlacement placement_;
  Server server_;  // last: its loop uses the sinks
};

template <typename Server, typename Port>
class AttentionMemberOf final : public Member<Server, Port> {
 public:
  template <typename... Args>
  explicit AttentionMemberOf(Connect<Port> connect, Args&&... server_arguments)
      : Member<Server, Port>(std::move(connect), std::forward<Args>(server_arguments)...) {}

  void on_go(Epoch epoch) override {
    auto [port, placement] = this->take_epoch(epoch);
    this->server().begin_epoch(epoch, std::move(port), std::move(placement));
  }
  void on_plan(AttentionStepPlan plan) override { this->server().submit_plan(std::move(plan)); }
  void on_plan(FfnStepPlan /*plan*/) override {
    check(false, "an attention server was sent an FFN plan");
  }
  control_plane::Heartbeat heartbeat() override {
    return {.progress = this->server().progress(), .ffn_load = std::nullopt};
  }
};

template <typename Server, typename Port>
class FfnMemberOf final : public Member<Server, Port> {
 public:
  template <typename... Args>
  explicit FfnMemberOf(Connect<Port> connect, Args&&... server_arguments)
      : Member<Server, Port>(std::move(connect), std::forward<Args>(server_arguments)...) {}

  void on_go(Epoch epoch) override {
    this->server().begin_epoch(epoch, this->take_epoch(epoch).first);
  }
  void on_plan(AttentionStepPlan /*plan*/) override {
    check(false, "an FFN server was sent an attention plan");
  }
  void on_plan(FfnStepPlan plan) override { this->server().submit_plan(std::move(plan)); }
  control_plane::Heartbeat heartbeat() override {
    return {.progress = this->server().progress(), .ffn_load = this->server().load()};
  }
};

using AttentionMember =
    AttentionMemberOf<attention_server::AttentionServer, transport::AttentionPort>;
using FfnMember = FfnMemberOf<ffn_server::FfnServer, transport::FfnPort>;
using GpuAttentionMember =
    AttentionMemberOf<attention_server::GpuAttentionServer, transport::DevicePort>;
using GpuFfnMember = FfnMemberOf<ffn_server::GpuFfnServer, transport::DevicePort>;

}  // namespace fastfd::cluster
