#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fastfd/control_plane/member_link.h"
#include "fastfd/core/engine_client.h"
#include "fastfd/scheduler/scheduler.h"

namespace fastfd::coordinator {

/// Asked to make sure that a server that may still be running, but doesn't answer, never writes
/// again: kill it (and let the supervisor start another). pid and process_key are what the server
/// said of itself when it registered, and no more to be trusted than that. Called on the engine's
/// thread; must not block.
using FenceCallback = std::function<void(Role role, ServerRank rank, std::uint32_t pid,
                                         const std::string& process_key)>;

struct EngineOptions {
  /// pages_per_server 0: the fewest that any attention server has registered when the cluster first
  /// serves. Whoever restarts later must have as many.
  scheduler::SchedulerOptions scheduler;
  control_plane::Contract contract;  ///< what servers must have to join
  std::uint32_t placement_version = 1;
  /// Silence after which a server is lost; 0: never (members of the same process).
  std::chrono::milliseconds heartbeat_timeout{5000};
  /// A stop that is not acknowledged within this time fences the server.
  std::chrono::milliseconds stop_timeout{5000};
  /// A server that stands still so long with its inputs there is hung. Doubles each time nothing
  /// has committed since the last stall. 0: never.
  std::chrono::milliseconds stall_timeout{10000};
  FenceCallback fence;  ///< may be empty
};

/// The coordinator's heart: one thread that takes what servers and clients bring, commits results,
/// hands tokens to their sinks and publishes plans as credit allows. It sleeps while nothing
/// happens. Servers are MemberLinks, so it runs over gRPC and in one process alike.
///
/// Life: it forms the cluster (waits for all servers, tells them the topology, waits until all are
/// ready, says go), serves, and on a loss stops the epoch, ends the requests that were running with
/// an error that names the server, and forms the cluster again (PROTOCOL: epochs).
class Engine final : public EngineClient, public control_plane::MemberEvents {
 public:
  explicit Engine(EngineOptions options);
  /// Ends the thread. Sinks and links are not called any more once it has returned.
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Refuses new requests from now on, lets those accepted finish until `timeout` is over, aborts
  /// the rest and shuts all servers down. Any thread; idempotent (the earliest deadline holds).
  void drain(std::chrono::milliseconds timeout);
  /// Blocks until a drain is complete; false if `timeout` came first.
  bool wait_drained(std::chrono::milliseconds timeout) const;

  // EngineClient
  Status submit(Request request, TokenSink* sink) override;
  void abort(RequestId id) override;
  RequestId next_request_id() override;
  EngineState state() const override;
  std::vector<EngineMetric> metrics() const override;

  // MemberEvents
  Result<control_plane::SessionId> member_registered(
      const control_plane::Registration& registration,
      std::shared_ptr<control_plane::MemberLink> link) override;
  void member_ready(control_plane::SessionId session, Epoch epoch) override;
  void stop_acked(control_plane::SessionId session, Epoch next_epoch) override;
  void lane_result(control_plane::SessionId session, LaneResult result) override;
  void heartbeat(control_plane::SessionId session,
                 const control_plane::Heartbeat& heartbeat) override;
  void ffn_load(control_plane::SessionId session, const FfnLoad& load) override;
  void member_failed(control_plane::SessionId session, const std::string& message) override;
  void member_lost(control_plane::SessionId session, const std::string& reason) override;
  control_plane::ClusterStatus cluster_status() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::coordinator
