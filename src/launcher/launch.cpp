#include "fastfd/launcher/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <stop_token>
#include <system_error>
#include <thread>

#include "fastfd/launcher/http_probe.h"

namespace fastfd::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The effective configuration in a folder that only this user may read; removed at the end.
class ConfigSnapshot {
 public:
  explicit ConfigSnapshot(const config::ClusterConfig& config) {
    std::string pattern = (std::filesystem::temp_directory_path() / "fastfd-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw LaunchError(pattern + ": can't make a folder for the cluster file: " +
                        std::generic_category().message(errno));
    }
    folder_ = pattern;
    std::ofstream out(file());
    out << config::to_yaml(config);
    out.close();
    if (!out) {
      std::filesystem::remove_all(folder_);
      throw LaunchError(file().string() + ": can't write the cluster file; is the disk full?");
    }
  }
  ~ConfigSnapshot() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ConfigSnapshot(const ConfigSnapshot&) = delete;
  ConfigSnapshot& operator=(const ConfigSnapshot&) = delete;

  std::filesystem::path file() const { return folder_ / "cluster.yaml"; }

 private:
  std::filesystem::path folder_;
};

std::atomic<Supervisor*> g_signal_target{nullptr};
std::atomic<int> g_stop_signals{0};

void on_signal(int signal) {
  Supervisor* supervisor = g_signal_target.load();
  if (supervisor == nullptr) {
    return;
  }
  // A closing terminal may send SIGHUP and SIGTERM together: only a repeated order is impatience.
  if (signal == SIGHUP || g_stop_signals.fetch_add(1) == 0) {
    supervisor->request_stop();
  } else {
    supervisor->request_kill();
  }
}

/// Directs signals to a supervisor while it lives.
class SignalScope {
 public:
  explicit SignalScope(Supervisor* supervisor) {
    g_stop_signals = 0;
    g_signal_target = supervisor;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &action, &previous_[i]);
    }
    action.sa_handler = SIG_IGN;  // a closed terminal must not kill us before the children
    ::sigaction(SIGPIPE, &action, &previous_pipe_);
  }
  ~SignalScope() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &previous_[i], nullptr);
    }
    ::sigaction(SIGPIPE, &previous_pipe_, nullptr);
    g_signal_target = nullptr;
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> previous_{};
  struct sigaction previous_pipe_ {};
};

/// One write a line, so that lines of several writers don't mix.
void print_line(std::string_view line) {
  std::string bytes(line);
  bytes += '\n';
  std::fwrite(bytes.data(), 1, bytes.size(), stderr);
}

std::string banner(const config::ClusterConfig& config, const std::string& url,
                   Clock::duration since_launch) {
  const std::string model = config.model.served_name.empty()
                                ? config.model.path.lexically_normal().filename().string()
                                : config.model.served_name;
  return fmt::format(
      "[launcher] FastFD is ready at {} after {:.1f} s: {} on {} attention + {} FFN servers "
      "({}); Ctrl-C stops it",
      url, std::chrono::duration<double>(since_launch).count(), model, config.attention.servers,
      config.ffn.servers, config::to_string(config.transport.kind));
}

/// Polls /ready; tells what the cluster waits for when that takes long.
void watch_ready(const std::stop_token& stop, const config::ClusterConfig& config,
                 Supervisor& supervisor) {
  constexpr milliseconds kPollInterval{50};
  constexpr milliseconds kProbeTimeout{1000};
  constexpr std::chrono::seconds kPatience{10};
  const auto& http = config.coordinator.http;
  const std::string host = reachable_host(http.host);
  const auto launched_at = Clock::now();
  auto speak_at = launched_at + kPatience;
  while (!stop.stop_requested()) {
    const Result<HttpReply> reply = http_get(host, http.port, "/ready", kProbeTimeout);
    if (reply && reply->status == 200) {
      supervisor.mark_ready();
      print_line(
          banner(config, fmt::format("http://{}:{}", host, http.port), Clock::now() - launched_at));
      return;
    }
    if (Clock::now() >= speak_at) {
      print_line("[launcher] not ready yet: " + (reply ? reply->body : reply.status().message()));
      speak_at += kPatience;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::vector<std::string> role_argv(const std::filesystem::path& executable, const char* role,
                                   const std::filesystem::path& config_file) {
  return {executable.string(), role, "--config", config_file.string()};
}

void add_servers(std::vector<ChildSpec>& children, std::uint32_t count, const std::string& name,
                 std::vector<std::string> argv) {
  argv.emplace_back("--rank");
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ChildSpec child{name + " " + std::to_string(rank), argv, true, 1};
    child.argv.push_back(std::to_string(rank));
    children.push_back(std::move(child));
  }
}

}  // namespace

std::vector<ChildSpec> cluster_children(const config::ClusterConfig& config,
                                        const std::filesystem::path& executable,
                                        const std::filesystem::path& config_file) {
  // The coordinator is told to stop first: it drains, for which it needs the servers.
  std::vector<ChildSpec> children{
      {"coordinator", role_argv(executable, "coordinator", config_file), false, 0}};
  add_servers(children, config.attention.servers, "attention",
              role_argv(executable, "attention-server", config_file));
  add_servers(children, config.ffn.servers, "ffn",
              role_argv(executable, "ffn-server", config_file));
  return children;
}

int run_launch(const config::ClusterConfig& config, const LaunchOptions& options) {
  if (config.transport.kind == config::TransportKind::kInproc) {
    throw LaunchError(
        "transport.kind 'inproc' joins threads of one process; a launched cluster has a process "
        "for "
        "each server: use 'shm'");
  }
  check_ports_free(config);
  if (options.before_start) {
    options.before_start();
  }
  const ConfigSnapshot snapshot(config);
  SupervisorOptions supervisor_options;
  supervisor_options.stop_timeout = options.stop_timeout;
  supervisor_options.drain_timeout = options.drain_timeout;
  supervisor_options.log = print_line;
  Supervisor supervisor(cluster_children(config, options.executable, snapshot.file()),
                        std::move(supervisor_options));
  const SignalScope signals(&supervisor);
  const std::jthread ready_watcher(
      [&](const std::stop_token& stop) { watch_ready(stop, config, supervisor); });
  const SupervisorResult result = supervisor.run();
  print_line(result.ok ? std::string("[launcher] stopped") : "[launcher] error: " + result.reason);
  return result.ok ? 0 : 1;
}

}  // namespace fastfd::launcher
