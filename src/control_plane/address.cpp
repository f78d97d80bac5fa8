#include "control_plane/address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "fastfd/control_plane/control_server.h"

namespace fastfd::control_plane {
namespace {

[[noreturn]] void refuse_address(const std::string& address, const std::string& cause,
                                 const std::string& remedy) {
  throw ControlPlaneError(
      fmt::format("the control plane can't listen on {}: {}; {}", address, cause, remedy));
}

/// 0 or the errno of binding and listening.
int try_listen(const addrinfo& info) {
  const int fd = ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol);
  if (fd < 0) {
    return errno;
  }
  // As gRPC does: a port in TIME_WAIT is free, one that somebody listens on is not.
  const int on = 1;
  int error = 0;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, info.ai_addr, info.ai_addrlen) != 0 || ::listen(fd, 1) != 0) {
    error = errno;
  }
  ::close(fd);
  return error;
}

}  // namespace

void check_can_listen(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) {
    refuse_address(address, "it has no port", "write host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                      address.substr(colon + 1).c_str(), &hints, &found);
      error != 0) {
    refuse_address(address, ::gai_strerror(error), "use an address of this host");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  switch (const int error = try_listen(*found); error) {
    case 0:
      return;
    case EADDRINUSE:
      refuse_address(address, "the port is taken",
                     fmt::format("stop the process that has it (ss -ltnp 'sport = :{}') or choose "
                                 "another port in coordinator.control",
                                 address.substr(colon + 1)));
    case EADDRNOTAVAIL:
      refuse_address(address, "it is no address of this host",
                     "use 127.0.0.1, 0.0.0.0 or an address that `ip addr` lists");
    default:
      refuse_address(address, std::strerror(error), "choose another address or port");
  }
}

}  // namespace fastfd::control_plane
