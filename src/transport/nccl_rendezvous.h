#pragma once

/// How the ids of an epoch's communicators get from the server that makes them to all others:
///
///   member                                   maker: rank 0 of the communicators
///     hello                             ->     checks who, epoch and shape
///                                       <-     accept, number of ids, ids; or a refusal
///
/// Messages are those of the handshake (transport/handshake.h) over TCP.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "fastfd/transport/nccl.h"
#include "transport/deadline.h"
#include "transport/handshake.h"
#include "transport/tcp_socket.h"

namespace fastfd::transport {

/// A ncclUniqueId, which is opaque here.
using NcclId = std::array<std::byte, 128>;

/// A member's connection to the maker, and what has come through it.
struct NcclCall {
  UniqueFd socket;
  HandshakeMessage hello;
  std::size_t num_bytes = 0;  ///< of the hello
};

/// Maker's side. Blocks until every other member has its ids, or an error. `waiting`: calls that
/// are for a later epoch than they met; lives as long as the endpoint.
Status hand_out_ids(const LocalServer& self, const TcpListener& listener, Epoch epoch,
                    std::span<const NcclMember> members, std::span<const NcclId> ids,
                    const Deadline& deadline, std::vector<NcclCall>& waiting);

/// The others' side: `num_ids` ids, from `maker`.
Result<std::vector<NcclId>> fetch_ids(const LocalServer& self, Epoch epoch, const NcclMember& maker,
                                      std::uint32_t num_ids, const Deadline& deadline);

}  // namespace fastfd::transport
