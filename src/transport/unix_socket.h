#pragma once

/// Unix sockets of type SOCK_SEQPACKET: a message arrives whole, together with its descriptors.
/// Addresses are "unix:/path" or "unix:@abstract-name". All sockets are non-blocking.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/status.h"
#include "transport/memory.h"

namespace fastfd::transport {

/// kInvalidArgument if `address` is not of a form above or too long for the kernel.
Status check_unix_address(const std::string& address);

/// Binds and listens. A socket file that nobody listens on any more is replaced. kUnavailable if
/// the address is taken.
Result<UniqueFd> listen_unix(const std::string& address);

/// kUnavailable if nobody listens there or the backlog is full: worth another try.
Result<UniqueFd> connect_unix(const std::string& address);

/// Next connection, or a closed descriptor if there is none. Never blocks.
UniqueFd accept_unix(const UniqueFd& listener);

/// OK if the process at the other end runs as this process's user.
Status check_same_user(const UniqueFd& socket);

/// kUnavailable if the other end has closed.
Status send_packet(const UniqueFd& socket, std::span<const std::byte> bytes,
                   std::span<const int> fds);

struct Packet {
  std::size_t num_bytes = 0;  ///< received; a longer packet is cut to the buffer
  std::vector<UniqueFd> fds;
};

/// Nothing if no packet is there yet; kUnavailable if the other end has closed. Never blocks.
Result<std::optional<Packet>> receive_packet(const UniqueFd& socket, std::span<std::byte> buffer);

}  // namespace fastfd::transport
