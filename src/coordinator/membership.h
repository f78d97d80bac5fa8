#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/in_flight.h"
#include "coordinator/stall_detector.h"
#include "fastfd/control_plane/member_link.h"

namespace fastfd::coordinator {

struct MembershipOptions {
  control_plane::Contract contract;
  std::uint32_t placement_version = 1;
  std::chrono::milliseconds heartbeat_timeout{5000};  ///< 0: silence is no sign of death
  std::chrono::milliseconds stop_timeout{5000};
  std::chrono::milliseconds stall_timeout{10000};  ///< 0: standing still is no sign of a hang
};

/// Who is in the cluster and in which epoch (PROTOCOL: epochs). A state machine without thread,
/// clock or scheduler: the engine feeds it events and asks for phase and epoch afterwards.
///
///     Forming -- all registered: Topology --> Connecting -- all ready: Go --> Serving
///        ^                                        |                              |
///        +---- all acknowledged or fenced -- Stopping <-- loss, failure, stall --+
///
/// The epoch grows on the way into Stopping, and whenever a server joins that has heard of a
/// higher one. Not thread-safe.
class Membership {
 public:
  enum class Phase : std::uint8_t { kForming, kConnecting, kServing, kStopping };

  /// A server to be killed: it may be alive, but doesn't answer.
  struct Fence {
    Role role;
    ServerRank rank;
    std::uint32_t pid;
    std::string process_key;
  };

  explicit Membership(const MembershipOptions& options);

  void registered(control_plane::SessionId session, control_plane::Registration registration,
                  std::shared_ptr<control_plane::MemberLink> link, SteadyTime now);
  void ready(control_plane::SessionId session, Epoch epoch, SteadyTime now);
  void stop_acked(control_plane::SessionId session, Epoch next_epoch, SteadyTime now);
  void heartbeat(control_plane::SessionId session, const control_plane::Heartbeat& heartbeat,
                 const InFlight& in_flight, SteadyTime now);
  void failed(control_plane::SessionId session, const std::string& message, SteadyTime now);
  void lost(control_plane::SessionId session, const std::string& reason, SteadyTime now);
  /// A step's results came: whoever failed or stalled before has recovered.
  void committed();

  /// To be called before the events of a round are handed in. If the coordinator itself stood still
  /// (a stopped process, a suspended machine), all servers get their time again: what they did
  /// meanwhile is still on its way.
  void notice_own_pause(SteadyTime now);

  /// When check_deadlines has something to look at next; nullopt: never.
  std::optional<SteadyTime> next_deadline() const;
  void check_deadlines(SteadyTime now);

  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  /// Why the last epoch ended: "FFN server 1 was lost: its stream closed".
  const std::string& end_reason() const { return end_reason_; }
  /// What the cluster waits for; empty while serving.
  std::string detail() const;
  std::vector<control_plane::MemberStatus> statuses() const;

  /// Of the attention servers' registered KV pages. Requires that all have joined.
  std::uint32_t fewest_pages() const;

  /// Role and rank of a live session; nullopt for one that is over.
  std::optional<std::pair<Role, ServerRank>> identify(control_plane::SessionId session) const;
  /// Null while the server is missing.
  control_plane::MemberLink* link(Role role, ServerRank rank) const;
  void send_ffn_plan(const FfnStepPlan& plan) const;
  /// Tells every member to end; whoever leaves from now on is no loss.
  void shut_down();

  /// Fences that became necessary since the last call.
  std::vector<Fence> take_fences() { return std::exchange(fences_, {}); }

 private:
  enum class State : std::uint8_t {
    kMissing,
    kRegistered,
    kConnecting,
    kReady,
    kServing,
    kStopping
  };

  struct Member {
    Role role = Role::kAttention;
    ServerRank rank = 0;
    State state = State::kMissing;
    control_plane::SessionId session = 0;
    control_plane::Registration registration;
    std::shared_ptr<control_plane::MemberLink> link;
    SteadyTime last_heard{};
    ServerProgress progress{};
    SteadyTime moved_at{};
    std::uint32_t failures = 0;  ///< in a row
  };

  Member* find(control_plane::SessionId session, SteadyTime now);
  std::size_t index(Role role, ServerRank rank) const;
  static std::string name(const Member& member);
  static const char* to_string(State state);
  bool all_in(State state) const;
  std::string names_in(State state) const;

  /// Takes a member out; ends the epoch if there is one.
  void remove(Member& member, const std::string& reason, SteadyTime now);
  /// As remove, for a server that may still be running.
  void expel(Member& member, const std::string& reason, SteadyTime now);
  void end_epoch(const std::string& reason, SteadyTime now);
  /// Goes on to the next phase, and the one after, while nothing is missing for it.
  void advance();
  void connect();
  void check_stall(const InFlight& in_flight, SteadyTime now);

  const MembershipOptions options_;
  std::vector<Member> members_;  // attention servers, then FFN servers
  Phase phase_ = Phase::kForming;
  Epoch epoch_ = 1;
  std::string end_reason_;
  SteadyTime stop_deadline_{};
  std::uint32_t stalls_ = 0;  // since anything committed
  std::vector<Fence> fences_;
  bool shut_down_ = false;
};

}  // namespace fastfd::coordinator
