#include "transport/tcp_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string_view>
#include <system_error>

#include "fastfd/core/ids.h"
#include "fastfd/transport/nccl.h"

namespace fastfd::transport {
namespace {

constexpr std::string_view kScheme = "tcp:";
// Every member may dial again before its first connection is looked at.
constexpr int kBacklog = 8 * static_cast<int>(kMaxServers);

std::string errno_text(int error) { return std::generic_category().message(error); }

Status unavailable(const std::string& address, const std::string& problem) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}", address, problem)};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> look_up(const TcpAddress& address, int type, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("host {}: {}", address.host, ::gai_strerror(error)));
  }
  return AddressList(found, &::freeaddrinfo);
}

UniqueFd make_socket(const addrinfo& info) {
  return UniqueFd(
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol));
}

void send_at_once(const UniqueFd& socket) {
  const int on = 1;
  static_cast<void>(::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

/// Host and port that a socket is bound to, as numbers.
Result<TcpAddress> bound_address(const UniqueFd& socket) {
  sockaddr_storage bound{};
  socklen_t num_bytes = sizeof(bound);
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(socket.get(), address, &num_bytes) != 0) {
    return Status(StatusCode::kUnavailable, errno_text(errno));
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error = ::getnameinfo(address, num_bytes, host, sizeof(host), port, sizeof(port),
                                  NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) {
    return Status(StatusCode::kUnavailable, ::gai_strerror(error));
  }
  return TcpAddress{host, port};
}

std::string format_address(const TcpAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return fmt::format("tcp:{}{}{}:{}", is_ipv6 ? "[" : "", address.host, is_ipv6 ? "]" : "",
                     address.port);
}

}  // namespace

Result<TcpAddress> parse_tcp_address(const std::string& address) {
  const Status bad(StatusCode::kInvalidArgument,
                   fmt::format("'{}' is not an address of transport nccl; it must be "
                               "tcp:HOST:PORT, an IPv6 host in brackets",
                               address));
  const std::string_view view = address;
  const std::size_t colon = view.rfind(':');
  if (!view.starts_with(kScheme) || colon < kScheme.size()) {
    return bad;
  }
  std::string_view host = view.substr(kScheme.size(), colon - kScheme.size());
  const std::string_view port = view.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad;
  }
  if (host.empty() || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string_view::npos ||
      std::stoul(std::string(port)) > 65535) {
    return bad;
  }
  return TcpAddress{std::string(host), std::string(port)};
}

Result<TcpListener> listen_tcp(const std::string& address) {
  const auto parsed = parse_tcp_address(address);
  if (!parsed) {
    return parsed.status();
  }
  const auto candidates = look_up(*parsed, SOCK_STREAM, AI_PASSIVE);
  if (!candidates) {
    return candidates.status();
  }
  const addrinfo& info = **candidates;
  TcpListener listener;
  listener.socket = make_socket(info);
  const int on = 1;
  if (!listener.socket.is_open() ||
      ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(listener.socket.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      ::listen(listener.socket.get(), kBacklog) != 0) {
    return unavailable(
        address, errno_text(errno) + "; give an address of this host, and port 0 or a free one");
  }
  const auto bound = bound_address(listener.socket);
  if (!bound) {
    return unavailable(address, bound.status().message());
  }
  listener.address = format_address({parsed->host, bound->port});
  return listener;
}

Result<UniqueFd> dial_tcp(const std::string& address) {
  const auto parsed = parse_tcp_address(address);
  if (!parsed) {
    return parsed.status();
  }
  const auto candidates = look_up(*parsed, SOCK_STREAM, 0);
  if (!candidates) {
    return candidates.status();
  }
  const addrinfo& info = **candidates;
  UniqueFd socket = make_socket(info);
  if (!socket.is_open()) {
    return unavailable(address, errno_text(errno));
  }
  send_at_once(socket);
  if (::connect(socket.get(), info.ai_addr, info.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return unavailable(address, errno_text(errno));
  }
  return socket;
}

Status dial_outcome(const UniqueFd& socket) {
  int error = 0;
  socklen_t num_bytes = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &num_bytes) != 0) {
    error = errno;
  }
  return error == 0 ? Status::ok() : Status(StatusCode::kUnavailable, errno_text(error));
}

UniqueFd accept_tcp(const UniqueFd& listener) {
  UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) {
    send_at_once(socket);
  }
  return socket;
}

Result<std::size_t> send_bytes(const UniqueFd& socket, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) {
    return static_cast<std::size_t>(sent);
  }
  if (errno == EAGAIN || errno == EINTR) {
    return std::size_t{0};
  }
  return Status(StatusCode::kUnavailable, errno_text(errno));
}

Result<std::size_t> receive_bytes(const UniqueFd& socket, std::span<std::byte> buffer) {
  const ssize_t received = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
  if (received > 0) {
    return static_cast<std::size_t>(received);
  }
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return std::size_t{0};
  }
  return Status(StatusCode::kUnavailable,
                received == 0 ? "it closed the connection" : errno_text(errno));
}

Result<std::string> listen_address_towards(const std::string& host) {
  // A datagram socket is bound to its way out as soon as it is connected; nothing is sent.
  const auto candidates = look_up({host, "9"}, SOCK_DGRAM, 0);
  if (!candidates) {
    return candidates.status();
  }
  const addrinfo& info = **candidates;
  const UniqueFd socket = make_socket(info);
  if (!socket.is_open() || ::connect(socket.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("no way to host {}: {}", host, errno_text(errno)));
  }
  const auto bound = bound_address(socket);
  if (!bound) {
    return bound.status();
  }
  return format_address({bound->host, "0"});
}

}  // namespace fastfd::transport
