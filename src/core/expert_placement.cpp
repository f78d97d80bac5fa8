#include "fastfd/core/expert_placement.h"

#include <algorithm>
#include <stdexcept>

namespace fastfd {

ExpertPlacement ExpertPlacement::contiguous(std::uint32_t num_experts, std::uint32_t num_servers,
                                            std::uint32_t num_replicas, std::uint32_t version) {
  if (num_experts == 0 || num_replicas == 0 || num_replicas > num_servers) {
    throw std::invalid_argument(
        "expert placement needs at least one expert and 1 <= replicas <= servers");
  }
  ExpertPlacement placement;
  placement.version_ = version;
  placement.num_experts_ = num_experts;
  placement.num_replicas_ = num_replicas;
  placement.experts_of_.resize(num_servers);
  std::vector<ServerRank> home(num_experts);
  const std::uint32_t share = num_experts / num_servers;
  const std::uint32_t remainder = num_experts % num_servers;
  std::uint32_t expert = 0;
  for (ServerRank rank = 0; rank < num_servers; ++rank) {
    const std::uint32_t count = share + (rank < remainder ? 1 : 0);
    for (std::uint32_t i = 0; i < count; ++i) {
      home[expert++] = rank;
    }
  }
  for (expert = 0; expert < num_experts; ++expert) {
    for (std::uint32_t i = 0; i < num_replicas; ++i) {
      placement.experts_of_[(home[expert] + i) % num_servers].push_back(expert);
    }
  }
  for (auto& experts : placement.experts_of_) {
    std::sort(experts.begin(), experts.end());
  }
  placement.replicas_.resize(num_experts);
  for (expert = 0; expert < num_experts; ++expert) {
    for (std::uint32_t i = 0; i < num_replicas; ++i) {
      const ServerRank rank = (home[expert] + i) % num_servers;
      const auto& own = placement.experts_of_[rank];
      const auto at = std::lower_bound(own.begin(), own.end(), expert);
      placement.replicas_[expert].push_back({rank, static_cast<std::uint32_t>(at - own.begin())});
    }
  }
  return placement;
}

}  // namespace fastfd
