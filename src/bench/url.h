#pragma once

#include <cstdint>
#include <string>

namespace fastfd::bench {

struct Url {
  std::string host;  ///< IPv6 without brackets
  std::uint16_t port = 80;
  std::string prefix;  ///< "" or "/some/path", without a trailing slash and without /v1

  /// "host:port" as the Host header has it.
  std::string authority() const;
  std::string to_string() const { return "http://" + authority() + prefix; }
};

/// http://host[:port][/prefix]. Throws BenchError that says what is wrong.
Url parse_url(const std::string& text);

}  // namespace fastfd::bench
