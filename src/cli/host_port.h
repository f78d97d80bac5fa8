#pragma once

#include <string>

#include "fastfd/config/cluster_config.h"

namespace fastfd::cli {

/// "host:port", IPv6 hosts in brackets or not. Throws config::ConfigError that names `option`.
config::HostPort parse_host_port(const std::string& text, const std::string& option);

}  // namespace fastfd::cli
