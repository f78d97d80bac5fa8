#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd {

/// Which FFN server holds which expert, under a version that plans name. The same table serves all
/// layers. Immutable once made: share it freely between threads.
class ExpertPlacement {
 public:
  /// Where a route of one attention server goes.
  struct Target {
    ServerRank ffn_rank = 0;
    std::uint32_t local_expert = 0;  ///< index into the server's own experts
  };

  ExpertPlacement() = default;

  /// Contiguous, near-equal shares (16 experts on 3 servers: 6, 5, 5); replica i of a share lives
  /// i servers further on. Throws std::invalid_argument unless 1 <= num_replicas <= num_servers
  /// and num_experts >= 1.
  static ExpertPlacement contiguous(std::uint32_t num_experts, std::uint32_t num_servers,
                                    std::uint32_t num_replicas, std::uint32_t version = 1);

  /// How the slices of a dense FFN lie: one a server, with as many replicas as the experts have.
  /// Every attention server finds exactly one slice on every server.
  ExpertPlacement dense_slices() const {
    return contiguous(num_servers(), num_servers(), num_replicas_, version_);
  }

  std::uint32_t version() const { return version_; }
  std::uint32_t num_experts() const { return num_experts_; }
  std::uint32_t num_servers() const { return static_cast<std::uint32_t>(experts_of_.size()); }

  /// Global expert ids of a server, ascending; local_expert indexes this list.
  const std::vector<std::uint32_t>& experts_of(ServerRank ffn_rank) const {
    return experts_of_[ffn_rank];
  }

  /// The replica that `attention_rank` uses: a fixed function of placement and rank.
  Target target(std::uint32_t expert, ServerRank attention_rank) const {
    const auto& replicas = replicas_[expert];
    return replicas[attention_rank % replicas.size()];
  }

 private:
  std::uint32_t version_ = 0;
  std::uint32_t num_experts_ = 0;
  std::uint32_t num_replicas_ = 1;
  std::vector<std::vector<std::uint32_t>> experts_of_;  // [num_servers][...]
  std::vector<std::vector<Target>> replicas_;           // [num_experts][num_replicas]
};

}  // namespace fastfd
