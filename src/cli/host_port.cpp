#include "cli/host_port.h"

#include <charconv>
#include <string_view>
#include <system_error>

namespace fastfd::cli {

config::HostPort parse_host_port(const std::string& text, const std::string& option) {
  const std::size_t colon = text.rfind(':');
  const std::string_view whole = text;
  config::HostPort result;
  if (colon != std::string::npos) {
    const std::string_view port = whole.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
    if (error == std::errc() && end == port.data() + port.size() && result.port != 0) {
      std::string_view host = whole.substr(0, colon);
      if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
      }
      result.host = host;
    }
  }
  if (result.host.empty()) {
    throw config::ConfigError(option + " '" + text +
                              "' is no address; write HOST:PORT with a port from 1 to 65535, such "
                              "as 127.0.0.1:8000");
  }
  return result;
}

}  // namespace fastfd::cli
