#pragma once

#include <memory>
#include <span>
#include <string>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/endpoint.h"
#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// `shm`: servers that are processes of one host. An endpoint listens on a Unix socket from
/// construction on; per epoch it exchanges windows (sealed memfds) with the servers of the other
/// role: attention servers dial, FFN servers answer, in any order of starting. The address goes
/// through the control plane.
///
/// Every connect makes new windows and a new doorbell, so a writer of an older epoch that wakes up
/// late reaches only memory that nobody reads any more; that memory goes when its port goes. A port
/// outlives its endpoint. One thread at a time calls connect functions; `cancel` may be set by any.
///
/// Errors of the connect functions, each naming peer, address and remedy:
///   kInvalidArgument   shapes, transports or handshake versions differ, or the peer list makes no
///                      sense
///   kUnavailable       a peer is of another incarnation than the topology says
///   kDeadlineExceeded  peers that did not answer (FFN: did not dial) in time, and why if known
///   kAborted           cancelled, or the peer is at a later epoch already
///   kResourceExhausted no memory for the windows
class ShmEndpoint {
 public:
  /// Throws std::invalid_argument for options that can't be, std::system_error if the address is
  /// taken or can't be bound.
  explicit ShmEndpoint(const EndpointOptions& options);
  ~ShmEndpoint();
  ShmEndpoint(const ShmEndpoint&) = delete;
  ShmEndpoint& operator=(const ShmEndpoint&) = delete;

  const std::string& address() const;

  /// On an attention server: blocks until every FFN server has given its window, or an error.
  Result<std::shared_ptr<AttentionPort>> connect_attention(Epoch epoch,
                                                           std::span<const PeerAddress> ffn_servers,
                                                           const ConnectOptions& options = {});
  /// On an FFN server: blocks until every attention server has come for its window, or an error.
  Result<std::shared_ptr<FfnPort>> connect_ffn(Epoch epoch,
                                               std::span<const PeerAddress> attention_servers,
                                               const ConnectOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::transport
