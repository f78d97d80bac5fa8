#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include "fastfd/control_plane/messages.h"
#include "fastfd/core/status.h"

namespace fastfd::control_plane {

/// A server as the coordinator's messages drive it. Calls come one at a time and in order, except
/// where said; plans arrive between on_go and the on_stop or on_disconnect that ends the epoch.
class ServerHandler {
 public:
  virtual ~ServerHandler() = default;

  /// Connect to the peers; ok reports Ready, an error reports a Failure. May block: it runs on a
  /// thread of its own, and `abandoned` is signalled when a stop, a newer topology or a lost stream
  /// makes it pointless; nothing else is called until it has returned.
  virtual Status on_topology(const Topology& topology, std::stop_token abandoned) = 0;
  /// Must not block, like on_plan.
  virtual void on_go(Epoch epoch) = 0;
  /// A server gets the plans of its role only; the other function is never called.
  virtual void on_plan(AttentionStepPlan plan) = 0;
  virtual void on_plan(FfnStepPlan plan) = 0;
  /// Leave the epoch, if one is active. StopAck is sent when this returns, so block until nothing
  /// can be written to any peer any more.
  virtual void on_stop(Epoch next_epoch) = 0;
  /// The stream to the coordinator broke: as on_stop. The client then connects again for ever.
  virtual void on_disconnect(const std::string& reason) = 0;
  /// The cluster is done; run() returns afterwards.
  virtual void on_shutdown() = 0;
  /// The coordinator won't have this server, or has replaced it; run() returns afterwards.
  virtual void on_refused(const std::string& reason) = 0;
  /// Called every heartbeat, on another thread than the rest; must not block.
  virtual Heartbeat heartbeat() = 0;
};

struct ControlClientOptions {
  std::string coordinator_address;  ///< "host:port"
  std::chrono::milliseconds heartbeat_interval{500};
  /// How often a client that finds no coordinator says so in the log.
  std::chrono::milliseconds log_interval{5000};
};

/// A server's end. Knows nothing of the role but what the handler does.
class ControlClient {
 public:
  /// `registration.last_epoch` is kept up to date by the client. `handler` must outlive it.
  ControlClient(ControlClientOptions options, Registration registration, ServerHandler& handler);
  ~ControlClient();  ///< as stop(); run() must have returned
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Connects, in any start order and again after a loss, registers and serves until shutdown,
  /// refusal or stop(). Blocks; call it once.
  void run();

  /// Any thread. Makes run() return soon; the coordinator sees the stream close.
  void stop();

  /// Any thread, never block. Dropped while there is no stream: the epoch is over then.
  void send_result(LaneResult result);
  void send_failure(const Status& status);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A random number for Registration::incarnation.
std::uint64_t draw_incarnation();

/// Asks a coordinator for its state. kUnavailable when nobody answers within `timeout`.
Result<ClusterStatus> fetch_status(const std::string& coordinator_address,
                                   std::chrono::milliseconds timeout);

}  // namespace fastfd::control_plane
