#include "scheduler/placement.h"

#include <algorithm>

namespace fastfd::scheduler {
namespace {

double imbalance_with(std::span<const ServerLoad> servers, ServerRank chosen) {
  double longest = 0;
  double total = 0;
  for (ServerRank rank = 0; rank < servers.size(); ++rank) {
    const double time = rank == chosen ? servers[rank].time_with : servers[rank].time;
    longest = std::max(longest, time);
    total += time;
  }
  return total <= 0 ? 1.0 : longest * static_cast<double>(servers.size()) / total;
}

}  // namespace

ServerRank choose_server(std::span<const ServerLoad> servers) {
  const auto none = static_cast<ServerRank>(servers.size());
  ServerRank lightest = none;
  for (ServerRank rank = 0; rank < servers.size(); ++rank) {
    if (servers[rank].has_room &&
        (lightest == none || servers[rank].time_with < servers[lightest].time_with)) {
      lightest = rank;
    }
  }
  const double limit = std::max(kMaxPlacementImbalance, imbalance_with(servers, lightest));
  ServerRank best = lightest;
  for (ServerRank rank = 0; rank < servers.size(); ++rank) {
    if (servers[rank].has_room && servers[rank].hit_tokens > servers[best].hit_tokens &&
        imbalance_with(servers, rank) <= limit) {
      best = rank;
    }
  }
  return best;
}

}  // namespace fastfd::scheduler
