#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "fastfd/core/request.h"
#include "fastfd/core/server_loop.h"

namespace fastfd::coordinator {

/// What is known of one server when its stillness is judged.
struct ServerView {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  ServerProgress progress{};
  std::uint32_t busy_lanes = 0;  ///< bit b: published work of lane b is not committed
  SteadyTime still_since{};      ///< last change of progress, or of getting work after having none
};

struct Stall {
  /// Who is hung; nullopt: everybody waits for somebody, so a signal was lost.
  std::optional<std::pair<Role, ServerRank>> culprit;
  std::string description;
};

/// Finds a server that has stood still for `timeout` although its inputs are there. Blame follows
/// the wait graph: an attention server waits for the FFN servers that have not answered (step,
/// layer, lane), an FFN server for the attention servers that have not sent it; who waits for
/// nobody and doesn't move is hung. If all busy servers stand still and none can be blamed the
/// stall has no culprit.
std::optional<Stall> find_stall(std::span<const ServerView> servers, std::uint32_t num_layers,
                                SteadyTime now, std::chrono::milliseconds timeout);

}  // namespace fastfd::coordinator
