#include "transport/shm_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

std::size_t own_window_bytes(const LocalServer& self) {
  return self.role == Role::kFfn ? dispatch_layout(self.shape).bytes()
                                 : combine_layout(self.shape).bytes();
}

std::size_t peer_window_bytes(const LocalServer& self) {
  return self.role == Role::kFfn ? combine_layout(self.shape).bytes()
                                 : dispatch_layout(self.shape).bytes();
}

Doorbell doorbell_of(const Mapping& mapping) {
  return Doorbell(reinterpret_cast<DoorbellPage*>(mapping.data()));
}

}  // namespace

int Deadline::slice_ms() const {
  constexpr std::chrono::milliseconds kLongest{20};
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kLongest).count());
}

Result<EpochMemory> EpochMemory::make(const LocalServer& self, Epoch epoch,
                                      std::span<const PeerAddress> peers) {
  EpochMemory memory;
  const std::string name = fmt::format("fastfd-{}-{}-e{}", to_string(self.role), self.rank, epoch);
  Result<SharedMemory> doorbell = SharedMemory::make(name + "-bell", doorbell_bytes());
  if (!doorbell) {
    return doorbell.status();
  }
  memory.doorbell = std::move(*doorbell);
  ServerRank highest = 0;
  for (const PeerAddress& peer : peers) {
    highest = std::max(highest, peer.rank);
  }
  memory.windows.resize(highest + 1);
  memory.peer_windows.resize(highest + 1);
  memory.peer_doorbells.resize(highest + 1);
  for (const PeerAddress& peer : peers) {
    Result<SharedMemory> window =
        SharedMemory::make(fmt::format("{}-from-{}", name, peer.rank), own_window_bytes(self));
    if (!window) {
      return window.status();
    }
    memory.windows[peer.rank] = std::move(*window);
  }
  return memory;
}

Status EpochMemory::map_peer(const LocalServer& self, ServerRank peer,
                             const std::vector<UniqueFd>& fds) {
  constexpr std::size_t kWindowAndDoorbell = 2;
  if (fds.size() != kWindowAndDoorbell) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("peer sent {} descriptors where a window and a doorbell are expected; "
                    "raise the limit of open files (ulimit -n)",
                    fds.size()));
  }
  Result<Mapping> peer_window = Mapping::map_peer(fds[0], peer_window_bytes(self));
  if (!peer_window) {
    return peer_window.status();
  }
  Result<Mapping> peer_doorbell = Mapping::map_peer(fds[1], doorbell_bytes());
  if (!peer_doorbell) {
    return peer_doorbell.status();
  }
  peer_windows[peer] = std::move(*peer_window);
  peer_doorbells[peer] = std::move(*peer_doorbell);
  return Status::ok();
}

PortParts make_port_parts(const LocalServer& self, WaitPolicy wait_policy, Epoch epoch,
                          EpochMemory memory) {
  auto owned = std::make_shared<EpochMemory>(std::move(memory));
  owned->doorbell.fd.reset();
  PortParts parts{self.shape, wait_policy, epoch, doorbell_of(owned->doorbell.mapping), {}, owned};
  parts.pairs.resize(owned->windows.size());
  for (ServerRank rank = 0; rank < parts.pairs.size(); ++rank) {
    owned->windows[rank].fd.reset();
    std::byte* own = owned->windows[rank].mapping.data();
    std::byte* peer = owned->peer_windows[rank].data();
    if (own == nullptr || peer == nullptr) {
      continue;
    }
    const bool is_ffn = self.role == Role::kFfn;
    parts.pairs[rank] = {is_ffn ? own : peer, is_ffn ? peer : own,
                         doorbell_of(owned->peer_doorbells[rank])};
  }
  return parts;
}

Status check_peers(std::span<const PeerAddress> peers, bool needs_addresses) {
  if (peers.empty()) {
    return Status(StatusCode::kInvalidArgument, "an epoch needs at least one peer to connect to");
  }
  std::array<bool, kMaxServers> seen{};
  for (const PeerAddress& peer : peers) {
    if (peer.rank >= kMaxServers || std::exchange(seen[peer.rank], true)) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("peer rank {} appears twice or is above {}", peer.rank, kMaxServers - 1));
    }
    if (needs_addresses) {
      if (Status status = check_unix_address(peer.address); !status) {
        return status;
      }
    }
  }
  return Status::ok();
}

}  // namespace fastfd::transport
