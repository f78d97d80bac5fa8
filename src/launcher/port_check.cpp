#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "fastfd/launcher/launch.h"
#include "launcher/child_process.h"

namespace fastfd::launcher {
namespace {

std::string file_hint(const config::ClusterConfig& config) {
  return config.source.empty() ? std::string() : " in " + config.source.string();
}

void check_port_free(const config::ClusterConfig& config, const config::HostPort& address,
                     const std::string& key, const std::string& option) {
  if (address.port == 0) {
    throw LaunchError(fmt::format(
        "{}{}: port 0 (any free port) can't be told to those who need it; give a port, as in "
        "\"{}\", or say {} HOST:PORT",
        config.source.empty() ? "" : config.source.string() + ": ", key,
        config::HostPort{address.host, 8000}.to_string(), option));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* raw = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &raw);
  if (error != 0) {
    throw LaunchError(
        fmt::format("{}: can't resolve host '{}' ({}); use an address of this machine{}", key,
                    address.host, ::gai_strerror(error), file_hint(config)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  const UniqueFd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      ::listen(listener.get(), 1) == 0) {
    return;
  }
  const int bind_errno = errno;
  if (bind_errno == EADDRINUSE) {
    throw LaunchError(
        fmt::format("{}: port {} is taken by another process; stop that process (`ss -ltnp` names "
                    "it) or choose another port for {}{}, or with {}",
                    address.to_string(), address.port, key, file_hint(config), option));
  }
  throw LaunchError(fmt::format("{}: can't listen: {}; change {}{}, or say {}", address.to_string(),
                                std::generic_category().message(bind_errno), key, file_hint(config),
                                option));
}

}  // namespace

void check_ports_free(const config::ClusterConfig& config) {
  check_port_free(config, config.coordinator.http, "coordinator.http", "--http");
  check_port_free(config, config.coordinator.control, "coordinator.control", "--control");
}

}  // namespace fastfd::launcher
