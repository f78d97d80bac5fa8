#include "cluster/endpoint_connect.h"

#include <atomic>
#include <stop_token>
#include <vector>

namespace fastfd::cluster {
namespace {

std::vector<transport::PeerAddress> peers_of(const control_plane::Topology& topology, Role role) {
  std::vector<transport::PeerAddress> peers;
  for (const auto& peer : topology.peers) {
    if (peer.role == role) {
      peers.push_back({peer.rank, peer.incarnation, peer.data_plane_address});
    }
  }
  return peers;
}

// call(epoch, peers, options) with a cancel flag that follows the stop token.
template <typename Port, typename Call>
Connect<Port> connect_to(Role peer_role, const Call& call) {
  return
      [peer_role, call](const control_plane::Topology& topology, const std::stop_token& abandoned) {
        std::atomic<bool> cancel{false};
        const std::stop_callback on_stop(abandoned, [&cancel] { cancel.store(true); });
        transport::ConnectOptions options;
        options.cancel = &cancel;
        return call(topology.epoch, peers_of(topology, peer_role), options);
      };
}

}  // namespace

Connect<transport::AttentionPort> shm_attention_connect(transport::ShmEndpoint& endpoint) {
  return connect_to<transport::AttentionPort>(
      Role::kFfn, [&endpoint](Epoch epoch, const auto& peers, const auto& options) {
        return endpoint.connect_attention(epoch, peers, options);
      });
}

Connect<transport::FfnPort> shm_ffn_connect(transport::ShmEndpoint& endpoint) {
  return connect_to<transport::FfnPort>(
      Role::kAttention, [&endpoint](Epoch epoch, const auto& peers, const auto& options) {
        return endpoint.connect_ffn(epoch, peers, options);
      });
}

Connect<transport::DevicePort> device_connect(transport::DeviceEndpoint& endpoint, Role peer_role) {
  return connect_to<transport::DevicePort>(
      peer_role, [&endpoint](Epoch epoch, const auto& peers, const auto& options) {
        return endpoint.connect(epoch, peers, options);
      });
}

}  // namespace fastfd::cluster
