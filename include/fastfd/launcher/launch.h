#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "fastfd/config/cluster_config.h"
#include "fastfd/core/printable.h"
#include "fastfd/launcher/supervisor.h"

namespace fastfd::launcher {

/// The cluster can't be started on this machine. what() names cause and remedy.
class LaunchError : public std::runtime_error {
 public:
  explicit LaunchError(std::string_view what) : std::runtime_error(printable(what)) {}
};

struct LaunchOptions {
  std::filesystem::path executable;  ///< the `fastfd` that the children run
  std::chrono::milliseconds stop_timeout{5000};
  /// Running requests may finish so long after the first signal; less than stop_timeout.
  std::chrono::milliseconds drain_timeout{3000};
  /// Called once the ports were found free; what it throws ends the launch. May be empty.
  std::function<void()> before_start;
};

/// The processes of a cluster: one coordinator, then attention servers, then FFN servers; or the
/// ranks of a co-located one. All read `config_file`.
std::vector<ChildSpec> cluster_children(const config::ClusterConfig& config,
                                        const std::filesystem::path& executable,
                                        const std::filesystem::path& config_file);

/// Throws LaunchError unless the HTTP and the control port can be bound now. Port 0 is refused:
/// nobody could be told which one it became.
void check_ports_free(const config::ClusterConfig& config);

/// Runs a cluster on this host until SIGINT, SIGTERM, SIGQUIT or SIGHUP, or until it can't go on.
/// Children read a snapshot of `config`, so that a file edited meanwhile does not mix two
/// configurations. A second order (see StopOrders; not SIGHUP) kills at once. Returns the exit
/// status: 0 after a requested stop. Throws LaunchError. Installs signal handlers: one call at a
/// time, on the main thread.
int run_launch(const config::ClusterConfig& config, const LaunchOptions& options);

}  // namespace fastfd::launcher
