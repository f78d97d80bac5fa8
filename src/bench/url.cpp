#include "bench/url.h"

#include <charconv>
#include <string_view>
#include <system_error>

#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {
namespace {

[[noreturn]] void reject(const std::string& text, const std::string& why) {
  throw BenchError("'" + text + "' is no usable URL: " + why +
                   "; write http://host:port, such as http://127.0.0.1:8000");
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::string Url::authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Url parse_url(const std::string& text) {
  std::string_view rest = text;
  if (rest.rfind("https://", 0) == 0) {
    reject(text, "https is not supported, use the server's plain port or a local TLS proxy");
  }
  constexpr std::string_view kScheme = "http://";
  if (rest.rfind(kScheme, 0) == 0) {
    rest.remove_prefix(kScheme.size());
  } else if (rest.find("://") != std::string_view::npos) {
    reject(text, "unknown scheme");
  }
  Url url;
  const std::size_t slash = rest.find('/');
  std::string_view path = slash == std::string_view::npos ? "" : rest.substr(slash);
  rest = rest.substr(0, slash);
  if (path.find_first_of("?# ") != std::string_view::npos) {
    reject(text, "it has a query, a fragment or a space");
  }
  while (ends_with(path, "/")) {
    path.remove_suffix(1);
  }
  if (ends_with(path, "/v1")) {
    path.remove_suffix(3);
  }
  url.prefix = path;

  std::string_view port;
  bool has_port = false;
  if (!rest.empty() && rest.front() == '[') {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) {
      reject(text, "'[' without ']'");
    }
    url.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest.front() != ':') {
      reject(text, "unexpected text after ']'");
    }
    has_port = !rest.empty();
    port = has_port ? rest.substr(1) : rest;
  } else {
    const std::size_t colon = rest.find(':');
    has_port = colon != std::string_view::npos;
    url.host = rest.substr(0, colon);
    port = has_port ? rest.substr(colon + 1) : "";
  }
  if (url.host.empty() || url.host.find_first_of(" @") != std::string::npos) {
    reject(text, "the host is missing or malformed");
  }
  if (has_port) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc() || end != port.data() + port.size() || url.port == 0) {
      reject(text, "the port is no number from 1 to 65535");
    }
  }
  return url;
}

}  // namespace fastfd::bench
