#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "fastfd/control_plane/member_link.h"

namespace fastfd::control_plane {

/// The control plane can't start. what() names address, cause and remedy.
class ControlPlaneError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The coordinator's end: accepts the servers' streams and turns them into MemberEvents calls and
/// MemberLinks. A stream costs two threads that sleep unless there is something to read or write.
class ControlServer {
 public:
  /// Binds `address` ("host:port"; port 0 picks one) at once and accepts streams. `events` must
  /// outlive the server. Throws ControlPlaneError if the port is taken or the host is not ours.
  ControlServer(const std::string& address, MemberEvents& events);
  /// Closes all streams; what was queued on the links by then (a shutdown) is still delivered if
  /// the peer takes it within a second.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  std::uint16_t port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::control_plane
