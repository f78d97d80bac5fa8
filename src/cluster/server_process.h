#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cluster/signal_watcher.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/transport/endpoint.h"

namespace fastfd::cluster {

/// A server of either role and device as a process of its own: what its endpoint and its member
/// need, and its way through the cluster. Declare it before both: their threads use it.
class ServerProcess {
 public:
  /// Takes SIGINT and SIGTERM for the process: before any thread. Throws as Blueprint does, and
  /// config::ConfigError if servers of these devices can't use this transport.
  ServerProcess(const config::ClusterConfig& config, Role role, ServerRank rank);

  const Blueprint& blueprint() const { return blueprint_; }
  ServerRank rank() const { return rank_; }
  std::uint64_t incarnation() const { return incarnation_; }
  transport::EndpointOptions endpoint_options() const;
  double seconds_since_start() const;

  /// For the member; they may be called while it is served.
  attention_server::ResultSink result_sink();
  attention_server::FailureSink failure_sink();

  /// Registers and blocks until the cluster or a signal ends it. The member has left its epoch
  /// then. Returns the exit status of the process.
  /// `num_pages`: KV pages of an attention server that found out by itself what it has room for.
  int serve(control_plane::ServerHandler& member, const std::string& data_plane_address,
            std::uint32_t num_pages = 0);

 private:
  control_plane::Registration registration(const std::string& data_plane_address) const;

  SignalWatcher signals_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const Role role_;
  const ServerRank rank_;
  const Blueprint blueprint_;
  const std::uint64_t incarnation_ = control_plane::draw_incarnation();
  std::unique_ptr<control_plane::ControlClient> client_;  // there once served
};

}  // namespace fastfd::cluster
