#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cluster/signal_watcher.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/transport/endpoint.h"

namespace fastfd::cluster {

/// A server as the coordinator knows it.
struct Seat {
  Role role = Role::kAttention;
  control_plane::ServerHandler* member = nullptr;
  std::string data_plane_address;
  /// KV pages of an attention server that found out by itself what it has room for.
  std::uint32_t num_pages = 0;
};

/// A server of either role and device, or a co-located rank, which is one of each, as a process of
/// its own: what its endpoints and its members need, and its way through the cluster. Declare it
/// before both: their threads use it.
class ServerProcess {
 public:
  /// Takes SIGINT and SIGTERM for the process: before any thread. Throws as Blueprint does, and
  /// config::ConfigError if servers of these devices can't use this transport.
  ServerProcess(const config::ClusterConfig& config, ServerRank rank);

  const Blueprint& blueprint() const { return blueprint_; }
  ServerRank rank() const { return rank_; }
  std::uint64_t incarnation() const { return incarnation_; }
  transport::EndpointOptions endpoint_options(Role role) const;
  double seconds_since_start() const;

  /// For the member; they may be called while it is served.
  attention_server::ResultSink result_sink();
  attention_server::FailureSink failure_sink(Role role);

  /// Registers the members, at most one of a role, and blocks until the cluster or a signal ends
  /// one of them, and with it all. They have left their epochs then. Returns the exit status of the
  /// process.
  int serve(std::span<const Seat> seats);
  int serve(const Seat& seat) { return serve(std::span(&seat, 1)); }

 private:
  std::unique_ptr<control_plane::ControlClient>& client(Role role) {
    return clients_[role == Role::kAttention ? 0 : 1];
  }
  control_plane::Registration registration(const Seat& seat) const;

  SignalWatcher signals_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const ServerRank rank_;
  const Blueprint blueprint_;
  const std::uint64_t incarnation_ = control_plane::draw_incarnation();
  // Of the roles that are served, once they are.
  std::array<std::unique_ptr<control_plane::ControlClient>, 2> clients_;
};

}  // namespace fastfd::cluster
