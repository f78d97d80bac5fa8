#pragma once

#include <array>
#include <cstdint>

#include "fastfd/core/step_plan.h"

namespace fastfd::coordinator {

/// Which (attention server, lane) owes results of published steps: whoever owes nothing is not
/// hung, however still it stands.
class InFlight {
 public:
  void published(const StepPlan& plan, SteadyTime now);
  void reported(const LaneResult& result);
  void clear();

  bool empty() const { return num_owed_ == 0; }
  /// Bit b: the server owes a result of lane b.
  std::uint32_t lanes_of(ServerRank attention_rank) const;
  /// Lanes in which any server owes a result: the ones FFN servers have work in.
  std::uint32_t lanes() const;
  /// Since when the server, or any server, has owed something without a break.
  SteadyTime since(ServerRank attention_rank) const { return servers_[attention_rank].since; }
  SteadyTime since() const { return since_; }

 private:
  struct Server {
    std::array<std::uint32_t, kMaxLanes> owed{};
    SteadyTime since{};
  };
  std::array<Server, kMaxServers> servers_{};
  std::uint64_t num_owed_ = 0;
  SteadyTime since_{};
};

}  // namespace fastfd::coordinator
