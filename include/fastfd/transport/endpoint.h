#pragma once

/// What the endpoints of all transports between processes are told: who this server is, and whom it
/// connects to.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "fastfd/core/ids.h"
#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// Who a server is and what it agrees on with all others.
struct EndpointOptions {
  Role role = Role::kAttention;  ///< kAttention or kFfn
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;  ///< as registered with the coordinator
  WindowShape shape;
  WaitPolicy wait_policy;  ///< of threads; kernels wait in a way of their own
  /// "unix:/path/of/socket" or "unix:@abstract-name"; empty: an abstract name of its own, which
  /// leaves no file behind however the process ends.
  std::string address;
};

/// A server of the other role, as the topology of an epoch names it.
struct PeerAddress {
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;
  std::string address;  ///< address() of that server's endpoint
};

struct ConnectOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  /// Optional: setting it makes the call return kAborted within 50 ms.
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace fastfd::transport
