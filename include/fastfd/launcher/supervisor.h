#pragma once

/// Starts child processes, forwards their output line by line, brings back those that may be
/// brought back, and stops them all. Knows nothing of FastFD's roles, so that it is tested with
/// /bin/sh.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd::launcher {

struct ChildSpec {
  std::string name;               ///< "attention 0": prefix of its log lines
  std::vector<std::string> argv;  ///< argv[0] is the path of the executable
  /// Brought back when it dies after mark_ready(). The death of a child without it ends the run.
  bool restart = false;
  /// Children of the lowest order get SIGTERM first; the next order follows when they are gone or
  /// `drain_timeout` is over.
  int stop_order = 0;
};

struct SupervisorOptions {
  /// From request_stop() to the last child reaped; SIGKILL goes out after nine tenths of it.
  std::chrono::milliseconds stop_timeout{5000};
  /// Longest time the children of one stop order may hold up the next.
  std::chrono::milliseconds drain_timeout{3000};
  std::chrono::milliseconds restart_backoff{500};  ///< doubled on each death in a row
  std::chrono::milliseconds restart_backoff_limit{10000};
  /// A child that lived so long counts as recovered: its deaths are counted from 0 again.
  std::chrono::milliseconds stable_after{60000};
  std::size_t max_restarts = 5;  ///< in a row, of one child; then the run ends
  /// Gets each line without its newline, prefixed with "[name] ". Called on run()'s thread.
  std::function<void(std::string_view line)> log;
};

struct SupervisorResult {
  /// Stopped on request, or by a child without `restart` that exited with 0; not if it took
  /// request_kill().
  bool ok = true;
  std::string reason;  ///< what ended the run when not ok, for people
};

/// One use: construct, run() once. No child outlives the calling thread: not when run() throws, not
/// when the process is killed with SIGKILL (PR_SET_PDEATHSIG).
class Supervisor {
 public:
  /// Throws std::invalid_argument for a child without argv, std::system_error when the kernel
  /// refuses an event descriptor.
  Supervisor(std::vector<ChildSpec> children, SupervisorOptions options);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts all children and blocks until all of them are gone. A child that can't be started or
  /// dies before mark_ready() ends the run, with its last lines in the reason.
  SupervisorResult run();

  /// Stops all children within stop_timeout. Idempotent. Any thread; async-signal-safe.
  void request_stop() noexcept;

  /// Kills all children at once. Any thread; async-signal-safe.
  void request_kill() noexcept;

  /// Start-up is over: from now on dead children with `restart` come back. Any thread.
  void mark_ready() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::launcher
