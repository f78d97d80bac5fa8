#include "transport/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "fastfd/core/ids.h"

namespace fastfd::transport {
namespace {

constexpr std::string_view kScheme = "unix:";
constexpr std::size_t kMaxFdsPerPacket = 4;
// Every peer may dial again before its first connection is looked at.
constexpr int kBacklog = 4 * static_cast<int>(kMaxServers);

std::string errno_text() { return std::generic_category().message(errno); }

Status unavailable(const std::string& address, int error) {
  return Status(StatusCode::kUnavailable,
                fmt::format("{}: {}", address, std::generic_category().message(error)));
}

struct SocketName {
  sockaddr_un name{};
  socklen_t num_bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

/// Requires check_unix_address(address).
SocketName make_name(const std::string& address) {
  const std::string_view path = std::string_view(address).substr(kScheme.size());
  SocketName result;
  result.name.sun_family = AF_UNIX;
  std::memcpy(result.name.sun_path, path.data(), path.size());
  const bool is_abstract = path.front() == '@';
  if (is_abstract) {
    result.name.sun_path[0] = '\0';
  }
  // The length is part of an abstract name; a path ends at its zero byte.
  result.num_bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));
  return result;
}

UniqueFd make_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// 0 and a connected socket, or an errno.
int try_connect(const std::string& address, UniqueFd& fd) {
  fd = make_socket();
  const SocketName name = make_name(address);
  return ::connect(fd.get(), name.get(), name.num_bytes) == 0 ? 0 : errno;
}

/// A crashed process leaves its socket file; nobody answers there.
bool remove_stale_file(const std::string& address) {
  UniqueFd fd;
  const std::string path = address.substr(kScheme.size());
  return path.front() == '/' && try_connect(address, fd) == ECONNREFUSED &&
         ::unlink(path.c_str()) == 0;
}

}  // namespace

Status check_unix_address(const std::string& address) {
  const std::string_view view = address;
  if (!view.starts_with(kScheme) || view.size() < kScheme.size() + 2 ||
      (view[kScheme.size()] != '/' && view[kScheme.size()] != '@')) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is not a data-plane address of this host; it must be "
                              "unix:/path/of/socket or unix:@name",
                              address));
  }
  constexpr std::size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (view.size() - kScheme.size() > kMaxPath) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is too long for a Unix socket; shorten the path to {} bytes",
                              address, kMaxPath));
  }
  return Status::ok();
}

Result<UniqueFd> listen_unix(const std::string& address) {
  UniqueFd fd = make_socket();
  const SocketName name = make_name(address);
  const auto bind_and_listen = [&] {
    return ::bind(fd.get(), name.get(), name.num_bytes) == 0 && ::listen(fd.get(), kBacklog) == 0
               ? 0
               : errno;
  };
  int error = bind_and_listen();
  if (error == EADDRINUSE && remove_stale_file(address)) {
    error = bind_and_listen();
  }
  if (error != 0) {
    return unavailable(address, error);
  }
  return fd;
}

Result<UniqueFd> connect_unix(const std::string& address) {
  UniqueFd fd;
  if (const int error = try_connect(address, fd); error != 0) {
    return unavailable(address, error);
  }
  return fd;
}

UniqueFd accept_unix(const UniqueFd& listener) {
  return UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Status check_same_user(const UniqueFd& socket) {
  ucred peer{};
  socklen_t num_bytes = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &num_bytes) != 0) {
    return Status(StatusCode::kUnavailable, errno_text());
  }
  if (peer.uid != ::geteuid()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("process {} runs as user {}, this one as user {}; run all servers of "
                              "a cluster as one user",
                              peer.pid, peer.uid, ::geteuid()));
  }
  return Status::ok();
}

Status send_packet(const UniqueFd& socket, std::span<const std::byte> bytes,
                   std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFdsPerPacket * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) {
    return Status(StatusCode::kUnavailable, errno_text());
  }
  return Status::ok();
}

Result<std::optional<Packet>> receive_packet(const UniqueFd& socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFdsPerPacket * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t received = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return std::optional<Packet>();
  }
  if (received <= 0) {
    return Status(StatusCode::kUnavailable,
                  received == 0 ? std::string("connection closed") : errno_text());
  }
  Packet packet;
  packet.num_bytes = static_cast<std::size_t>(received);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  return std::optional<Packet>(std::move(packet));
}

}  // namespace fastfd::transport
