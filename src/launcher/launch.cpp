#include "fastfd/launcher/launch.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <thread>

#include "fastfd/core/stop_orders.h"
#include "fastfd/launcher/http_probe.h"
#include "launcher/child_process.h"

namespace fastfd::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The effective configuration as a file without a name, which the children open through /proc of
/// this process, at a restart as well. However this process ends, nothing of it is left over.
class ConfigSnapshot {
 public:
  explicit ConfigSnapshot(const config::ClusterConfig& config)
      : fd_(::memfd_create("fastfd-cluster.yaml", MFD_CLOEXEC)) {
    if (!fd_.is_open()) {
      fail();
    }
    const std::string text = config::to_yaml(config);
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t written = ::write(fd_.get(), rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR) {
        fail();
      }
    }
  }

  std::filesystem::path file() const {
    return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
  }

 private:
  [[noreturn]] static void fail() {
    throw LaunchError("can't keep the effective cluster file in memory: " +
                      std::generic_category().message(errno));
  }

  UniqueFd fd_;
};

/// Whom signals reach, and what came so far.
struct SignalTarget {
  Supervisor* supervisor;
  StopOrders orders;
};
std::atomic<SignalTarget*> g_signal_target{nullptr};

void on_signal(int signal) {
  SignalTarget* target = g_signal_target.load();
  if (target == nullptr) {
    return;
  }
  // A terminal that closes may send SIGHUP as well as another one: it never means impatience.
  if (signal != SIGHUP && target->orders.is_impatient(Clock::now())) {
    target->supervisor->request_kill();
  } else {
    target->supervisor->request_stop();
  }
}

/// Directs signals to a supervisor while it lives.
class SignalScope {
 public:
  explicit SignalScope(Supervisor* supervisor) : target_{supervisor, {}} {
    g_signal_target = &target_;
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
  static constexpr std::array<int, 4> kSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  SignalTarget target_;
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
  const std::string servers =
      config.is_colocated()
          ? fmt::format("{} co-located server{}", config.attention.servers,
                        config.attention.servers == 1 ? "" : "s")
          : fmt::format("{} attention + {} FFN servers ({})", config.attention.servers,
                        config.ffn.servers, config::to_string(config.transport.kind));
  return fmt::format("[launcher] FastFD is ready at {} after {:.1f} s: {} on {}; Ctrl-C stops it",
                     url, std::chrono::duration<double>(since_launch).count(), model, servers);
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
      print_line(banner(config, "http://" + config::HostPort{host, http.port}.to_string(),
                        Clock::now() - launched_at));
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
  if (config.is_colocated()) {
    add_servers(children, config.attention.servers, "server",
                role_argv(executable, "colocated-server", config_file));
    return children;
  }
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
        "for each server: use 'auto'");
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
