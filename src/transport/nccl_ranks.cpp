#include "transport/nccl_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "transport/handshake.h"

namespace fastfd::transport {

Result<NcclRanks> NcclRanks::make(std::span<const NcclMember> members,
                                  std::uint32_t num_attention_servers,
                                  std::uint32_t num_ffn_servers) {
  NcclRanks ranks;
  for (const NcclMember& member : members) {
    const bool is_attention = member.role == Role::kAttention;
    if (!is_attention && member.role != Role::kFfn) {
      return Status(StatusCode::kInvalidArgument, "a member of an epoch is no server");
    }
    const std::uint32_t num_servers = is_attention ? num_attention_servers : num_ffn_servers;
    auto& servers = is_attention ? ranks.attention_ : ranks.ffn_;
    const bool is_new = std::find(servers.begin(), servers.end(), member.rank) == servers.end();
    if (!is_new || member.rank >= num_servers) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} is twice in the epoch, or beyond the {} servers of its role",
                                server_name(member.role, member.rank), num_servers));
    }
    servers.push_back(member.rank);
  }
  if (ranks.attention_.empty() || ranks.ffn_.empty()) {
    return Status(StatusCode::kInvalidArgument, "an epoch needs servers of both roles");
  }
  std::sort(ranks.attention_.begin(), ranks.attention_.end());
  std::sort(ranks.ffn_.begin(), ranks.ffn_.end());
  return ranks;
}

int NcclRanks::rank_of(Role role, ServerRank rank) const {
  const auto& list = servers(role);
  const auto found = std::lower_bound(list.begin(), list.end(), rank);
  if (found == list.end() || *found != rank) {
    return -1;
  }
  const auto index = static_cast<int>(found - list.begin());
  return role == Role::kAttention ? index : static_cast<int>(attention_.size()) + index;
}

std::string describe_servers(Role role, const std::vector<ServerRank>& ranks) {
  if (ranks.size() == 1) {
    return server_name(role, ranks[0]);
  }
  return fmt::format("{} servers {}", role == Role::kFfn ? "FFN" : "attention",
                     fmt::join(ranks, ", "));
}

}  // namespace fastfd::transport
