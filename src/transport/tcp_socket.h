#pragma once

/// TCP sockets between servers of different hosts. Addresses are "tcp:HOST:PORT", an IPv6 host in
/// brackets. All sockets are non-blocking.

#include <cstddef>
#include <span>
#include <string>

#include "fastfd/core/status.h"
#include "transport/memory.h"

namespace fastfd::transport {

struct TcpAddress {
  std::string host;  ///< without brackets
  std::string port;
};

/// kInvalidArgument if `address` is not of the form above.
Result<TcpAddress> parse_tcp_address(const std::string& address);

struct TcpListener {
  UniqueFd socket;
  std::string address;  ///< with the port that was found
};

/// Binds and listens; port 0 is any free one. kUnavailable with cause and remedy.
Result<TcpListener> listen_tcp(const std::string& address);

/// Starts to connect. kUnavailable if the name is not known or there is no way to it.
Result<UniqueFd> dial_tcp(const std::string& address);
/// How a dialled socket that has become writable came out: kUnavailable if nobody listens there.
Status dial_outcome(const UniqueFd& socket);

/// Next connection, or a closed descriptor if there is none. Never blocks.
UniqueFd accept_tcp(const UniqueFd& listener);

/// Bytes sent or received, 0 if none can be now; kUnavailable if the other end has closed.
Result<std::size_t> send_bytes(const UniqueFd& socket, std::span<const std::byte> bytes);
Result<std::size_t> receive_bytes(const UniqueFd& socket, std::span<std::byte> buffer);

}  // namespace fastfd::transport
