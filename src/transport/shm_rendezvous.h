#pragma once

/// The two sides of the handshake of one epoch. Both make all their own memory first, so a peer
/// that is answered early may already write while others are still missing.

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/shm.h"
#include "transport/handshake.h"
#include "transport/memory.h"
#include "transport/window_ports.h"

namespace fastfd::transport {

/// End of the patience of one connect call.
class Deadline {
 public:
  explicit Deadline(const ConnectOptions& options)
      : timeout_(options.timeout),
        end_(std::chrono::steady_clock::now() + options.timeout),
        cancel_(options.cancel) {}

  std::chrono::milliseconds timeout() const { return timeout_; }
  bool is_cancelled() const {
    return cancel_ != nullptr && cancel_->load(std::memory_order_acquire);
  }
  bool is_over() const { return std::chrono::steady_clock::now() >= end_; }
  /// How long to block before looking again: short enough to see a cancellation.
  int slice_ms() const;

 private:
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* cancel_;
};

/// Everything one server maps in one epoch.
struct EpochMemory {
  SharedMemory doorbell;                ///< own
  std::vector<SharedMemory> windows;    ///< own, one a peer rank; not mapped where there is none
  std::vector<Mapping> peer_windows;    ///< [peer rank]
  std::vector<Mapping> peer_doorbells;  ///< [peer rank]

  /// Makes the doorbell and a window for each peer.
  static Result<EpochMemory> make(const LocalServer& self, Epoch epoch,
                                  std::span<const PeerAddress> peers);
  /// Maps what a peer's hello brought.
  Status map_peer(const LocalServer& self, ServerRank peer, const std::vector<UniqueFd>& fds);
};

/// Parts of a port, once every peer is mapped. Closes the descriptors; the mappings stay.
PortParts make_port_parts(const LocalServer& self, WaitPolicy wait_policy, Epoch epoch,
                          EpochMemory memory);

/// Ranks in range and not twice, addresses of the right form.
Status check_peers(std::span<const PeerAddress> peers, bool needs_addresses);

/// Attention server: goes to every FFN server.
Result<EpochMemory> dial_ffn_servers(const LocalServer& self, Epoch epoch,
                                     std::span<const PeerAddress> ffn_servers,
                                     const Deadline& deadline);

/// A dialler that is at a later epoch than this server; it is answered when this server gets there.
struct ParkedDialler {
  UniqueFd socket;
  ReceivedMessage hello;
};

/// FFN server: waits for every attention server. `parked` lives as long as the endpoint.
Result<EpochMemory> await_attention_servers(const LocalServer& self, const std::string& address,
                                            const UniqueFd& listener, Epoch epoch,
                                            std::span<const PeerAddress> attention_servers,
                                            const Deadline& deadline,
                                            std::vector<ParkedDialler>& parked);

}  // namespace fastfd::transport
