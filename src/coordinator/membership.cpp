#include "coordinator/membership.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "fastfd/core/check.h"

namespace fastfd::coordinator {
namespace {

using control_plane::Heartbeat;
using control_plane::member_name;
using control_plane::MemberLink;
using control_plane::Registration;
using control_plane::SessionId;

/// A server whose loop fails so often without a commit in between needs a new process.
constexpr std::uint32_t kMaxFailuresInARow = 3;
/// The stall timeout doubles at most so often.
constexpr std::uint32_t kMaxStallDoublings = 4;
/// Deadlines that are found this late say that this process itself was stopped or starved: the
/// heartbeats of that time are still unread.
constexpr std::chrono::seconds kOwnDelay{1};

bool same_place(const ServerProgress& a, const ServerProgress& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
    return x.step == y.step && x.layer == y.layer && x.waiting == y.waiting;
  });
}

}  // namespace

Membership::Membership(const MembershipOptions& options) : options_(options) {
  for (ServerRank rank = 0; rank < options_.contract.num_attention_servers; ++rank) {
    members_.emplace_back().rank = rank;
  }
  for (ServerRank rank = 0; rank < options_.contract.num_ffn_servers; ++rank) {
    Member& member = members_.emplace_back();
    member.role = Role::kFfn;
    member.rank = rank;
  }
}

void Membership::registered(SessionId session, Registration registration,
                            std::shared_ptr<MemberLink> link, SteadyTime now) {
  Member& member = members_[index(registration.role, registration.rank)];
  if (member.session != 0) {
    const auto reason =
        fmt::format("it was replaced by a newer stream (incarnation {:016x}, pid {})",
                    registration.incarnation, registration.pid);
    member.link->refuse(reason);
    remove(member, reason, now);
  }
  member.state = State::kRegistered;
  member.session = session;
  member.registration = std::move(registration);
  member.link = std::move(link);
  member.last_heard = now;
  member.progress = {};
  member.failures = 0;
  spdlog::info("{} joined (pid {}, incarnation {:016x})", name(member), member.registration.pid,
               member.registration.incarnation);
  advance();
}

void Membership::ready(SessionId session, Epoch epoch, SteadyTime now) {
  Member* member = find(session, now);
  if (member != nullptr && epoch == epoch_ && member->state == State::kConnecting) {
    member->state = State::kReady;
    advance();
  }
}

void Membership::stop_acked(SessionId session, Epoch next_epoch, SteadyTime now) {
  Member* member = find(session, now);
  if (member != nullptr && next_epoch == epoch_ && member->state == State::kStopping) {
    member->state = State::kRegistered;
    advance();
  }
}

void Membership::heartbeat(SessionId session, const Heartbeat& heartbeat, const InFlight& in_flight,
                           SteadyTime now) {
  Member* member = find(session, now);
  if (member == nullptr) {
    return;
  }
  if (!same_place(member->progress, heartbeat.progress)) {
    member->progress = heartbeat.progress;
    member->moved_at = now;
  }
  check_stall(in_flight, now);
}

void Membership::failed(SessionId session, const std::string& message, SteadyTime now) {
  Member* member = find(session, now);
  if (member == nullptr || (phase_ != Phase::kServing && phase_ != Phase::kConnecting)) {
    return;
  }
  const auto reason = fmt::format("{} failed: {}", name(*member), message);
  if (++member->failures >= kMaxFailuresInARow) {
    expel(*member, fmt::format("it failed {} times in a row: {}", member->failures, message), now);
  } else {
    end_epoch(reason, now);
  }
}

void Membership::lost(SessionId session, const std::string& reason, SteadyTime now) {
  if (Member* member = find(session, now)) {
    remove(*member, reason, now);
  }
}

void Membership::committed() {
  stalls_ = 0;
  for (auto& member : members_) {
    member.failures = 0;
  }
}

std::optional<SteadyTime> Membership::next_deadline() const {
  std::optional<SteadyTime> next;
  const auto consider = [&next](SteadyTime deadline) {
    next = next ? std::min(*next, deadline) : deadline;
  };
  if (phase_ == Phase::kStopping) {
    consider(stop_deadline_);
  }
  if (options_.heartbeat_timeout.count() != 0) {
    for (const auto& member : members_) {
      if (member.session != 0) {
        consider(member.last_heard + options_.heartbeat_timeout);
      }
    }
  }
  return next;
}

void Membership::notice_own_pause(SteadyTime now) {
  const auto deadline = next_deadline();
  if (!deadline || now - *deadline <= kOwnDelay) {
    return;
  }
  spdlog::warn("the coordinator itself stood still; giving all servers their time again");
  for (auto& member : members_) {
    member.last_heard = now;
    member.moved_at = now;
  }
  stop_deadline_ = now + options_.stop_timeout;
}

void Membership::check_deadlines(SteadyTime now) {
  const auto deadline = next_deadline();
  if (!deadline || now < *deadline) {
    return;
  }
  if (options_.heartbeat_timeout.count() != 0) {
    for (auto& member : members_) {
      if (member.session != 0 && now - member.last_heard >= options_.heartbeat_timeout) {
        expel(member, fmt::format("it was silent for {} ms", options_.heartbeat_timeout.count()),
              now);
      }
    }
  }
  if (phase_ == Phase::kStopping && now >= stop_deadline_) {
    for (auto& member : members_) {
      if (member.state == State::kStopping) {
        expel(member,
              fmt::format("it did not acknowledge the end of its epoch within {} ms",
                          options_.stop_timeout.count()),
              now);
      }
    }
  }
}

std::string Membership::detail() const {
  switch (phase_) {
    case Phase::kForming:
      return "waiting for " + names_in(State::kMissing);
    case Phase::kConnecting:
      return "waiting for " + names_in(State::kConnecting) + " to connect to its peers";
    case Phase::kServing:
      return {};
    case Phase::kStopping:
      return "waiting for " + names_in(State::kStopping) + " to leave the last epoch";
  }
  return {};
}

std::vector<control_plane::MemberStatus> Membership::statuses() const {
  std::vector<control_plane::MemberStatus> statuses;
  statuses.reserve(members_.size());
  for (const auto& member : members_) {
    statuses.push_back({member.role, member.rank, member.registration.incarnation,
                        member.registration.pid, member.registration.data_plane_address,
                        to_string(member.state)});
  }
  return statuses;
}

std::uint32_t Membership::fewest_pages() const {
  std::uint32_t fewest = UINT32_MAX;
  for (const auto& member : members_) {
    if (member.role == Role::kAttention) {
      fewest = std::min(fewest, member.registration.num_pages);
    }
  }
  return fewest;
}

std::optional<std::pair<Role, ServerRank>> Membership::identify(SessionId session) const {
  for (const auto& member : members_) {
    if (session != 0 && member.session == session) {
      return std::pair(member.role, member.rank);
    }
  }
  return std::nullopt;
}

MemberLink* Membership::link(Role role, ServerRank rank) const {
  return members_[index(role, rank)].link.get();
}

void Membership::send_ffn_plan(const FfnStepPlan& plan) const {
  for (const auto& member : members_) {
    if (member.role == Role::kFfn && member.link != nullptr) {
      member.link->plan(plan);
    }
  }
}

void Membership::shut_down() {
  shut_down_ = true;
  for (const auto& member : members_) {
    if (member.link != nullptr) {
      member.link->shutdown();
    }
  }
}

Membership::Member* Membership::find(SessionId session, SteadyTime now) {
  for (auto& member : members_) {
    if (session != 0 && member.session == session) {
      member.last_heard = now;  // whatever it says, it lives
      return &member;
    }
  }
  return nullptr;
}

std::size_t Membership::index(Role role, ServerRank rank) const {
  const std::size_t first = role == Role::kFfn ? options_.contract.num_attention_servers : 0;
  check(first + rank < members_.size(), "rank was checked at the handshake");
  return first + rank;
}

std::string Membership::name(const Member& member) { return member_name(member.role, member.rank); }

const char* Membership::to_string(State state) {
  switch (state) {
    case State::kMissing:
      return "missing";
    case State::kRegistered:
      return "registered";
    case State::kConnecting:
      return "connecting";
    case State::kReady:
      return "ready";
    case State::kServing:
      return "serving";
    case State::kStopping:
      return "stopping";
  }
  return "unknown";
}

bool Membership::all_in(State state) const {
  return std::all_of(members_.begin(), members_.end(),
                     [state](const Member& member) { return member.state == state; });
}

std::string Membership::names_in(State state) const {
  std::string names;
  for (const auto& member : members_) {
    if (member.state == state) {
      names += (names.empty() ? "" : ", ") + name(member);
    }
  }
  return names;
}

void Membership::remove(Member& member, const std::string& reason, SteadyTime now) {
  const auto text = fmt::format("{} was lost: {}", name(member), reason);
  member.state = State::kMissing;
  member.session = 0;
  member.link.reset();
  if (shut_down_) {
    spdlog::info("{} left", name(member));
  } else if (phase_ == Phase::kConnecting || phase_ == Phase::kServing) {
    end_epoch(text, now);
  } else {
    spdlog::warn("{}", text);
    advance();
  }
}

void Membership::expel(Member& member, const std::string& reason, SteadyTime now) {
  fences_.push_back(
      {member.role, member.rank, member.registration.pid, member.registration.process_key});
  member.link->refuse(reason);
  remove(member, reason, now);
}

void Membership::end_epoch(const std::string& reason, SteadyTime now) {
  ++epoch_;
  end_reason_ = reason;
  phase_ = Phase::kStopping;
  stop_deadline_ = now + options_.stop_timeout;
  spdlog::warn("{}; ending epoch {}", reason, epoch_ - 1);
  for (auto& member : members_) {
    if (member.session != 0) {
      member.state = State::kStopping;
      member.link->stop(epoch_, reason);
    }
  }
  advance();
}

void Membership::advance() {
  if (phase_ == Phase::kStopping && names_in(State::kStopping).empty()) {
    phase_ = Phase::kForming;
  }
  if (phase_ == Phase::kForming && all_in(State::kRegistered)) {
    connect();
  }
  if (phase_ == Phase::kConnecting && all_in(State::kReady)) {
    phase_ = Phase::kServing;
    for (auto& member : members_) {
      member.state = State::kServing;
      member.progress = {};
      member.link->go(epoch_);
    }
    spdlog::info("all {} servers are ready: serving in epoch {}", members_.size(), epoch_);
  }
}

void Membership::connect() {
  for (const auto& member : members_) {
    epoch_ = std::max(epoch_, member.registration.last_epoch + 1);
  }
  const auto& contract = options_.contract;
  control_plane::Topology topology;
  topology.epoch = epoch_;
  topology.placement = {contract.num_experts, contract.num_ffn_servers, contract.expert_replicas,
                        options_.placement_version};
  for (const auto& member : members_) {
    topology.peers.push_back({member.role, member.rank, member.registration.incarnation,
                              member.registration.data_plane_address});
  }
  phase_ = Phase::kConnecting;
  for (auto& member : members_) {
    member.state = State::kConnecting;
    member.link->begin(topology);
  }
}

void Membership::check_stall(const InFlight& in_flight, SteadyTime now) {
  if (options_.stall_timeout.count() == 0 || phase_ != Phase::kServing || in_flight.empty()) {
    return;
  }
  std::vector<ServerView> views;
  views.reserve(members_.size());
  for (const auto& member : members_) {
    const bool is_ffn = member.role == Role::kFfn;
    const auto busy_since = is_ffn ? in_flight.since() : in_flight.since(member.rank);
    views.push_back({member.role, member.rank, member.progress,
                     is_ffn ? in_flight.lanes() : in_flight.lanes_of(member.rank),
                     std::max(member.moved_at, busy_since)});
  }
  const auto timeout = options_.stall_timeout * (1U << std::min(stalls_, kMaxStallDoublings));
  const auto stall = find_stall(views, options_.contract.num_layers, now, timeout);
  if (!stall) {
    return;
  }
  ++stalls_;
  if (stall->culprit) {
    expel(members_[index(stall->culprit->first, stall->culprit->second)], stall->description, now);
  } else {
    end_epoch(stall->description, now);
  }
}

}  // namespace fastfd::coordinator
