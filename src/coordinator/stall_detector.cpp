#include "coordinator/stall_detector.h"

#include <fmt/format.h>

#include <algorithm>

#include "fastfd/control_plane/messages.h"

namespace fastfd::coordinator {
namespace {

using control_plane::member_name;

bool is_busy(const ServerView& server, LaneId lane) {
  return (server.busy_lanes >> lane & 1U) != 0;
}

/// An attention server's loop is one thread: if it waits in any lane, it waits.
bool waits_for_ffn(const ServerView& server) {
  return std::any_of(server.progress.begin(), server.progress.end(),
                     [](const LaneProgress& lane) { return lane.waiting; });
}

bool some_attention_server_waits_at(std::span<const ServerView> servers, LaneId lane,
                                    const LaneProgress& position) {
  return std::any_of(servers.begin(), servers.end(), [&](const ServerView& server) {
    const auto& progress = server.progress[lane];
    return server.role == Role::kAttention && is_busy(server, lane) && progress.waiting &&
           progress.step == position.step && progress.layer == position.layer;
  });
}

/// An FFN lane that is not waiting either computes or has done the last layer of all its plans;
/// only in the first case somebody may wait for it there.
bool ffn_is_computing(std::span<const ServerView> servers, const ServerView& ffn,
                      std::uint32_t num_layers) {
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    const auto& progress = ffn.progress[lane];
    if (!is_busy(ffn, lane) || progress.waiting || progress.step == 0) {
      continue;
    }
    if (progress.layer + 1 < num_layers ||
        some_attention_server_waits_at(servers, lane, progress)) {
      return true;
    }
  }
  return false;
}

std::string describe(const ServerView& server) {
  std::string lanes;
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    if (is_busy(server, lane)) {
      const auto& progress = server.progress[lane];
      lanes += fmt::format("{}lane {} at step {} layer {}{}", lanes.empty() ? "" : ", ", lane,
                           progress.step, progress.layer, progress.waiting ? " waiting" : "");
    }
  }
  return fmt::format("{} ({})", member_name(server.role, server.rank), lanes);
}

}  // namespace

std::optional<Stall> find_stall(std::span<const ServerView> servers, std::uint32_t num_layers,
                                SteadyTime now, std::chrono::milliseconds timeout) {
  bool any_busy = false;
  bool all_still = true;
  std::string busy_servers;
  for (const auto& server : servers) {
    if (server.busy_lanes == 0) {
      continue;
    }
    any_busy = true;
    const bool still = now - server.still_since >= timeout;
    all_still = all_still && still;
    busy_servers += (busy_servers.empty() ? "" : "; ") + describe(server);
    const bool waits = server.role == Role::kAttention
                           ? waits_for_ffn(server)
                           : !ffn_is_computing(servers, server, num_layers);
    if (still && !waits) {
      return Stall{std::pair(server.role, server.rank),
                   fmt::format("{} has not moved for {} ms", describe(server), timeout.count())};
    }
  }
  if (any_busy && all_still) {
    return Stall{std::nullopt,
                 fmt::format("no server has moved for {} ms: {}", timeout.count(), busy_servers)};
  }
  return std::nullopt;
}

}  // namespace fastfd::coordinator
