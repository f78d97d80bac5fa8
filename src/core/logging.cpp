#include "fastfd/core/logging.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <stdexcept>

namespace fastfd {

void init_logging(const std::string& process_name, const std::string& level) {
  const auto parsed = spdlog::level::from_str(level == "warn" ? "warning" : level);
  if (parsed == spdlog::level::off && level != "off") {
    throw std::invalid_argument("unknown log level '" + level +
                                "'; use trace, debug, info, warn, error or off");
  }
  auto logger = std::make_shared<spdlog::logger>(process_name,
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %-5l [%n] %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace fastfd
