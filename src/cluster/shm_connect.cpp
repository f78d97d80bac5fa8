#include "cluster/shm_connect.h"

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

// Calls connect(options) with a cancel flag that follows the stop token.
template <typename Call>
auto cancellable(const std::stop_token& abandoned, const Call& call) {
  std::atomic<bool> cancel{false};
  const std::stop_callback on_stop(abandoned, [&cancel] { cancel.store(true); });
  transport::ConnectOptions options;
  options.cancel = &cancel;
  return call(options);
}

}  // namespace

Connect<transport::AttentionPort> shm_attention_connect(transport::ShmEndpoint& endpoint) {
  return [&endpoint](const control_plane::Topology& topology, const std::stop_token& abandoned) {
    return cancellable(abandoned, [&](const transport::ConnectOptions& options) {
      return endpoint.connect_attention(topology.epoch, peers_of(topology, Role::kFfn), options);
    });
  };
}

Connect<transport::FfnPort> shm_ffn_connect(transport::ShmEndpoint& endpoint) {
  return [&endpoint](const control_plane::Topology& topology, const std::stop_token& abandoned) {
    return cancellable(abandoned, [&](const transport::ConnectOptions& options) {
      return endpoint.connect_ffn(topology.epoch, peers_of(topology, Role::kAttention), options);
    });
  };
}

}  // namespace fastfd::cluster
