#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fastfd/control_plane/messages.h"
#include "fastfd/core/status.h"

namespace fastfd::control_plane {

/// One server as the coordinator commands it; over gRPC (ControlServer) or directly, with all roles
/// in one process. Commands arrive in order. Every function may be called from any thread and
/// returns at once; it may report by MemberEvents meanwhile, but not register. Commands to a member
/// that is gone are dropped.
class MemberLink {
 public:
  virtual ~MemberLink() = default;

  /// Connect to these peers for the epoch, then report member_ready.
  virtual void begin(const Topology& topology) = 0;
  /// Everybody is ready: plans of the epoch follow.
  virtual void go(Epoch epoch) = 0;
  virtual void plan(AttentionStepPlan plan) = 0;
  virtual void plan(const FfnStepPlan& plan) = 0;
  /// Abandon what is in flight, because of `reason`; report stop_acked once nothing can be written
  /// any more.
  virtual void stop(Epoch next_epoch, const std::string& reason) = 0;
  /// The cluster is done: end the process.
  virtual void shutdown() = 0;
  /// This member is out of the cluster: end with this reason, never to register again.
  virtual void refuse(const std::string& reason) = 0;
};

/// One registration of one server; never reused, so whatever arrives late from an earlier
/// incarnation or stream of a rank is known by it.
using SessionId = std::uint64_t;

/// What servers report, as the coordinator takes it. Every function may be called from any thread
/// and returns at once; calls for one session must be in order. Unknown sessions are ignored.
class MemberEvents {
 public:
  virtual ~MemberEvents() = default;

  /// A server introduces itself, with no epoch active. An error refuses it: its message is the
  /// reason. A live member of the same rank is fenced by the newcomer.
  virtual Result<SessionId> member_registered(const Registration& registration,
                                              std::shared_ptr<MemberLink> link) = 0;
  virtual void member_ready(SessionId session, Epoch epoch) = 0;
  virtual void stop_acked(SessionId session, Epoch next_epoch) = 0;
  virtual void lane_result(SessionId session, LaneResult result) = 0;
  virtual void heartbeat(SessionId session, const Heartbeat& heartbeat) = 0;
  virtual void ffn_load(SessionId session, const FfnLoad& load) = 0;
  /// Its loop gave up; the member itself is still there and will acknowledge a stop.
  virtual void member_failed(SessionId session, const std::string& message) = 0;
  /// The stream is closed or the process is gone.
  virtual void member_lost(SessionId session, const std::string& reason) = 0;

  virtual ClusterStatus cluster_status() const = 0;
};

}  // namespace fastfd::control_plane
