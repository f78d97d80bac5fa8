#include "coordinator/in_flight.h"

namespace fastfd::coordinator {

void InFlight::published(const StepPlan& plan, SteadyTime now) {
  for (const auto& [rank, server_plan] : plan.attention) {
    for (const auto& lane : server_plan.lanes) {
      if ((lane.participants >> rank & 1U) == 0) {
        continue;  // only rows that leave: nothing is reported
      }
      if (num_owed_ == 0) {
        since_ = now;
      }
      if (lanes_of(rank) == 0) {
        servers_[rank].since = now;
      }
      ++servers_[rank].owed[lane.lane];
      ++num_owed_;
    }
  }
}

void InFlight::reported(const LaneResult& result) {
  auto& owed = servers_[result.attention_rank].owed[result.lane];
  if (owed > 0) {
    --owed;
    --num_owed_;
  }
}

void InFlight::clear() { *this = InFlight(); }

std::uint32_t InFlight::lanes_of(ServerRank attention_rank) const {
  std::uint32_t mask = 0;
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    mask |= (servers_[attention_rank].owed[lane] > 0 ? 1U : 0U) << lane;
  }
  return mask;
}

std::uint32_t InFlight::lanes() const {
  std::uint32_t mask = 0;
  for (ServerRank rank = 0; rank < kMaxServers; ++rank) {
    mask |= lanes_of(rank);
  }
  return mask;
}

}  // namespace fastfd::coordinator
