#pragma once

#include <cstdint>
#include <span>

#include "fastfd/core/ids.h"

namespace fastfd::scheduler {

/// One attention server that has room for a new sequence, or that only counts for the balance.
struct ServerLoad {
  bool has_room = false;
  std::uint32_t hit_tokens = 0;  ///< of the prompt, in this server's prefix cache
  double time = 0;               ///< predicted, of a decode step with what it holds now
  double time_with = 0;          ///< the same with the new sequence
};

/// The slowest attention server sets everyone's time per token, so max/mean stays under this.
inline constexpr double kMaxPlacementImbalance = 1.2;

/// Where a sequence goes: to the longest prefix hit that keeps max/mean of the predicted times
/// within kMaxPlacementImbalance (or no worse than the best choice can), else to the server that
/// ends with the least time. Requires that one has room.
ServerRank choose_server(std::span<const ServerLoad> servers);

}  // namespace fastfd::scheduler
