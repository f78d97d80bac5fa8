#include "cluster/members.h"

#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/core/logging.h"

namespace fastfd::cluster {

AttentionMember::AttentionMember(const Blueprint& blueprint, ServerRank rank,
                                 std::shared_ptr<const model::AttentionWeights> weights,
                                 Connect<transport::AttentionPort> connect,
                                 attention_server::ResultSink on_result,
                                 attention_server::FailureSink on_failure)
    : connect_(std::move(connect)),
      server_(blueprint.attention_options(rank), blueprint.spec(), std::move(weights),
              std::move(on_result), std::move(on_failure)) {}

Status AttentionMember::on_topology(const control_plane::Topology& topology,
                                    std::stop_token abandoned) {
  auto port = connect_(topology, std::move(abandoned));
  if (!port) {
    return port.status();
  }
  const std::lock_guard lock(mutex_);
  port_ = *std::move(port);
  placement_ = topology.placement.make();
  return Status::ok();
}

void AttentionMember::on_go(Epoch epoch) {
  std::shared_ptr<transport::AttentionPort> port;
  ExpertPlacement placement;
  {
    const std::lock_guard lock(mutex_);
    port = std::exchange(port_, nullptr);
    placement = placement_;
  }
  check(port != nullptr, "an epoch starts without a data plane");
  spdlog::info("epoch {} begins", epoch);
  server_.begin_epoch(epoch, std::move(port), std::move(placement));
}

void AttentionMember::on_plan(AttentionStepPlan plan) { server_.submit_plan(std::move(plan)); }
void AttentionMember::on_plan(FfnStepPlan /*plan*/) {
  check(false, "an attention server was sent an FFN plan");
}
void AttentionMember::on_stop(Epoch /*next_epoch*/) { server_.stop_epoch(); }

void AttentionMember::on_disconnect(const std::string& reason) {
  spdlog::warn("lost the coordinator: {}", reason);
  server_.stop_epoch();
}

void AttentionMember::on_shutdown() { server_.stop_epoch(); }

void AttentionMember::on_refused(const std::string& reason) {
  server_.stop_epoch();
  const std::lock_guard lock(mutex_);
  refusal_ = reason;
}

control_plane::Heartbeat AttentionMember::heartbeat() {
  return {.progress = server_.progress(), .ffn_load = std::nullopt};
}

std::string AttentionMember::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

FfnMember::FfnMember(const Blueprint& blueprint, ServerRank rank,
                     std::shared_ptr<const model::FfnWeights> weights,
                     Connect<transport::FfnPort> connect, ffn_server::FailureSink on_failure)
    : connect_(std::move(connect)),
      server_(blueprint.ffn_options(rank), blueprint.spec(), std::move(weights),
              std::move(on_failure)) {}

Status FfnMember::on_topology(const control_plane::Topology& topology, std::stop_token abandoned) {
  auto port = connect_(topology, std::move(abandoned));
  if (!port) {
    return port.status();
  }
  const std::lock_guard lock(mutex_);
  port_ = *std::move(port);
  return Status::ok();
}

void FfnMember::on_go(Epoch epoch) {
  std::shared_ptr<transport::FfnPort> port;
  {
    const std::lock_guard lock(mutex_);
    port = std::exchange(port_, nullptr);
  }
  check(port != nullptr, "an epoch starts without a data plane");
  spdlog::info("epoch {} begins", epoch);
  server_.begin_epoch(epoch, std::move(port));
}

void FfnMember::on_plan(AttentionStepPlan /*plan*/) {
  check(false, "an FFN server was sent an attention plan");
}
void FfnMember::on_plan(FfnStepPlan plan) { server_.submit_plan(std::move(plan)); }
void FfnMember::on_stop(Epoch /*next_epoch*/) { server_.stop_epoch(); }

void FfnMember::on_disconnect(const std::string& reason) {
  spdlog::warn("lost the coordinator: {}", reason);
  server_.stop_epoch();
}

void FfnMember::on_shutdown() { server_.stop_epoch(); }

void FfnMember::on_refused(const std::string& reason) {
  server_.stop_epoch();
  const std::lock_guard lock(mutex_);
  refusal_ = reason;
}

control_plane::Heartbeat FfnMember::heartbeat() {
  return {.progress = server_.progress(), .ffn_load = server_.load()};
}

std::string FfnMember::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

}  // namespace fastfd::cluster
