#pragma once

/// The handshake of one epoch, whatever memory is exchanged by it. Both sides make all their own
/// memory first, so a peer that is answered early may already write while others are still missing.

#include <span>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/endpoint.h"
#include "transport/deadline.h"
#include "transport/epoch_memory.h"
#include "transport/handshake.h"
#include "transport/unix_socket.h"

namespace fastfd::transport {

/// A dialler that is at a later epoch than this server; it is answered when this server gets there.
struct ParkedDialler {
  UniqueFd socket;
  ReceivedMessage hello;
};

/// A server's address, where it listens from construction on, and its exchanges. What the endpoints
/// of all transports between processes of a host are made of; errors as theirs.
class Rendezvous {
 public:
  /// `place`: LocalServer::place. Throws as the endpoints do.
  Rendezvous(const EndpointOptions& options, WindowKind windows, std::string place = "");
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const LocalServer& self() const { return self_; }
  const std::string& address() const { return address_; }

  /// One epoch with every server of `peers`, all of the other role: attention servers dial, FFN
  /// servers answer. The result's descriptors are closed.
  Result<EpochMemory> exchange(Epoch epoch, std::span<const PeerAddress> peers,
                               const ConnectOptions& options, const Exchange& exchange);

 private:
  LocalServer self_;
  std::string address_;
  UniqueFd listener_;
  std::vector<ParkedDialler> parked_;
};

/// Attention server: goes to every FFN server.
Result<EpochMemory> dial_ffn_servers(const LocalServer& self, Epoch epoch,
                                     std::span<const PeerAddress> ffn_servers,
                                     const Deadline& deadline, EpochMemory memory);

/// FFN server: waits for every attention server. `parked` lives as long as the endpoint.
Result<EpochMemory> await_attention_servers(const LocalServer& self, const std::string& address,
                                            const UniqueFd& listener, Epoch epoch,
                                            std::span<const PeerAddress> attention_servers,
                                            const Deadline& deadline,
                                            std::vector<ParkedDialler>& parked, EpochMemory memory);

}  // namespace fastfd::transport
