#pragma once

#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace fastfd {

/// Points the process's default logger at stderr with the pattern
/// "2026-01-31 12:00:00.123 info  [attention 0] message". Call once, first thing in main.
/// `level` is one of trace, debug, info, warn, error, off; throws std::invalid_argument otherwise.
void init_logging(const std::string& process_name, const std::string& level);

}  // namespace fastfd
