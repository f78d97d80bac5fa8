#pragma once

#include <span>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/nccl.h"

namespace fastfd::transport {

/// Ranks in the communicators of one epoch: its attention servers, then its FFN servers, each
/// ascending. Servers that are not in the epoch have none. Immutable.
class NcclRanks {
 public:
  /// kInvalidArgument for members twice, ranks beyond the cluster's, or a role without members.
  static Result<NcclRanks> make(std::span<const NcclMember> members,
                                std::uint32_t num_attention_servers, std::uint32_t num_ffn_servers);

  int num_ranks() const { return static_cast<int>(attention_.size() + ffn_.size()); }
  /// -1: not in the epoch.
  int rank_of(Role role, ServerRank rank) const;
  /// Ascending.
  const std::vector<ServerRank>& servers(Role role) const {
    return role == Role::kAttention ? attention_ : ffn_;
  }
  bool contains(Role role, ServerRank rank) const { return rank_of(role, rank) >= 0; }

 private:
  NcclRanks() = default;
  std::vector<ServerRank> attention_;
  std::vector<ServerRank> ffn_;
};

/// "FFN servers 0, 2"
std::string describe_servers(Role role, const std::vector<ServerRank>& ranks);

}  // namespace fastfd::transport
