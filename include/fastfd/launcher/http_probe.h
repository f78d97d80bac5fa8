#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "fastfd/core/status.h"

namespace fastfd::launcher {

struct HttpReply {
  int status = 0;
  std::string body;
};

/// GET http://host:port/path with a connection of its own. Blocks at most `timeout`. kUnavailable:
/// nobody listens or the name is unknown; kDeadlineExceeded; kInternal: what answers is not HTTP.
/// Any thread. Meant for /health and /ready: replies over 1 MiB are cut.
Result<HttpReply> http_get(const std::string& host, std::uint16_t port, const std::string& path,
                           std::chrono::milliseconds timeout);

/// The address a client on this host reaches a listener at: "0.0.0.0" becomes "127.0.0.1".
std::string reachable_host(const std::string& listen_host);

}  // namespace fastfd::launcher
