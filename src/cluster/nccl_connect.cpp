#include "cluster/nccl_connect.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <stop_token>
#include <vector>

namespace fastfd::cluster {
namespace {

// NCCL looks for ways between all hosts, and a communicator takes part of a second.
constexpr std::chrono::seconds kTimeout{60};

}  // namespace

transport::NcclEndpointOptions nccl_endpoint_options(const Blueprint& blueprint, Role role,
                                                     ServerRank rank, std::uint64_t incarnation) {
  const config::ClusterConfig& config = blueprint.config();
  const auto address = transport::listen_address_towards(config.coordinator.control.host);
  if (!address) {
    throw config::ConfigError(fmt::format(
        "{}: coordinator.control: {}; transport nccl listens where servers reach the coordinator",
        config.source.string(), address.status().message()));
  }
  const std::uint32_t lanes = config.scheduler.microbatches;
  return {.role = role,
          .rank = rank,
          .incarnation = incarnation,
          .shape = blueprint.window_shape(),
          .num_attention_servers = config.attention.servers,
          .num_ffn_servers = config.ffn.servers,
          .num_lanes = lanes == 0 ? kMaxLanes : lanes,
          .address = *address};
}

Connect<transport::DevicePort> nccl_connect(transport::NcclEndpoint& endpoint) {
  return [&endpoint](const control_plane::Topology& topology, const std::stop_token& abandoned) {
    std::vector<transport::NcclMember> members;
    members.reserve(topology.peers.size());
    for (const auto& peer : topology.peers) {
      members.push_back({peer.role, peer.rank, peer.incarnation, peer.data_plane_address});
    }
    std::atomic<bool> cancel{false};
    const std::stop_callback on_stop(abandoned, [&cancel] { cancel.store(true); });
    return endpoint.connect(topology.epoch, members, {.timeout = kTimeout, .cancel = &cancel});
  };
}

}  // namespace fastfd::cluster
