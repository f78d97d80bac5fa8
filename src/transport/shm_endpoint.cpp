#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/transport/shm.h"
#include "transport/rendezvous.h"
#include "transport/window_layouts.h"
#include "transport/window_ports.h"

namespace fastfd::transport {
namespace {

enum PieceIndex : std::size_t { kWindow, kDoorbell };

Doorbell doorbell_at(std::byte* page) { return Doorbell(reinterpret_cast<DoorbellPage*>(page)); }

}  // namespace

struct ShmEndpoint::Impl {
  Rendezvous rendezvous;
  WaitPolicy wait_policy;
  SharedMemoryMaker maker;

  template <typename Port, typename Implementation>
  Result<std::shared_ptr<Port>> connect(Epoch epoch, std::span<const PeerAddress> peers,
                                        const ConnectOptions& options) {
    const std::size_t bell_bytes = doorbell_bytes();
    auto memory = rendezvous.exchange(epoch, peers, options,
                                      {maker,
                                       {window_piece(rendezvous.self()),
                                        {"doorbell", bell_bytes, bell_bytes, /*is_common=*/true}}});
    if (!memory) {
      return memory.status();
    }
    return std::shared_ptr<Port>(std::make_shared<Implementation>(
        make_parts(epoch, peers.front().rank, std::move(*memory))));
  }

  PortParts make_parts(Epoch epoch, ServerRank any_peer, EpochMemory memory) const {
    const bool is_ffn = rendezvous.self().role == Role::kFfn;
    auto owned = std::make_shared<EpochMemory>(std::move(memory));
    PortParts parts{rendezvous.self().shape,
                    wait_policy,
                    epoch,
                    doorbell_at(owned->own(any_peer, kDoorbell)),
                    {},
                    owned};
    parts.pairs.resize(owned->num_ranks());
    for (ServerRank rank = 0; rank < parts.pairs.size(); ++rank) {
      if (std::byte* own = owned->own(rank, kWindow); own != nullptr) {
        std::byte* peers = owned->peers(rank, kWindow);
        parts.pairs[rank] = {is_ffn ? own : peers, is_ffn ? peers : own,
                             doorbell_at(owned->peers(rank, kDoorbell))};
      }
    }
    return parts;
  }
};

ShmEndpoint::ShmEndpoint(const EndpointOptions& options)
    : impl_(new Impl{{options, WindowKind::kSharedMemory}, options.wait_policy, {}}) {}
ShmEndpoint::~ShmEndpoint() = default;

const std::string& ShmEndpoint::address() const { return impl_->rendezvous.address(); }

Result<std::shared_ptr<AttentionPort>> ShmEndpoint::connect_attention(
    Epoch epoch, std::span<const PeerAddress> ffn_servers, const ConnectOptions& options) {
  check(impl_->rendezvous.self().role == Role::kAttention,
        "only attention servers dial FFN servers");
  return impl_->connect<AttentionPort, WindowAttentionPort>(epoch, ffn_servers, options);
}

Result<std::shared_ptr<FfnPort>> ShmEndpoint::connect_ffn(
    Epoch epoch, std::span<const PeerAddress> attention_servers, const ConnectOptions& options) {
  check(impl_->rendezvous.self().role == Role::kFfn, "only FFN servers await attention servers");
  return impl_->connect<FfnPort, WindowFfnPort>(epoch, attention_servers, options);
}

}  // namespace fastfd::transport
