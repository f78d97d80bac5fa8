#include "fastfd/launcher/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "launcher/child_process.h"
#include "launcher/log_prefixer.h"

namespace fastfd::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A child and what the supervisor remembers of it over its restarts.
struct Child {
  Child(ChildSpec its_spec, const LogPrefixer::Sink& sink)
      : spec(std::move(its_spec)), log(spec.name, sink) {}

  ChildSpec spec;
  LogPrefixer log;
  ChildProcess process;
  Clock::time_point started_at;
  std::optional<Clock::time_point> restart_at;
  std::size_t deaths_in_a_row = 0;
  bool terminated = false;  ///< got its SIGTERM
  bool killed = false;      ///< got SIGKILL as well

  /// Forwards what the child has written; at most `max_reads` buffers, so that one that never stops
  /// writing doesn't starve the others.
  void forward_output(int max_reads) {
    std::string bytes;
    for (int i = 0; i < max_reads && process.read_output(bytes); ++i) {
      log.feed(bytes);
      bytes.clear();
    }
  }
};

constexpr int kReadsPerTurn = 16;
/// Only where the kernel has no pidfd_open: how often deaths are looked for.
constexpr milliseconds kReapInterval{50};

}  // namespace

class Supervisor::Impl {
 public:
  Impl(std::vector<ChildSpec> specs, SupervisorOptions options)
      : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.is_open()) {
      throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    if (!options_.log) {
      options_.log = [](std::string_view) {};
    }
    children_.reserve(specs.size());
    for (ChildSpec& spec : specs) {
      if (spec.argv.empty()) {
        throw std::invalid_argument("child '" + spec.name + "' has no command line");
      }
      children_.emplace_back(std::move(spec), options_.log);
    }
  }

  ~Impl() {
    for (Child& child : children_) {
      child.process.send_signal(SIGKILL);
    }
    // SIGKILL can't be refused, so this ends; without it run()'s caller would inherit zombies.
    for (Child& child : children_) {
      while (child.process.is_running() && !child.process.try_reap()) {
        ::usleep(1000);
      }
    }
  }

  SupervisorResult run() {
    start_all();
    while (!all_gone()) {
      wait_for_event();
      const auto now = Clock::now();
      handle_requests(now);
      for (Child& child : children_) {
        child.forward_output(kReadsPerTurn);
        reap(child, now);
      }
      restart_due(now);
      advance_stop(now);
    }
    return result_;
  }

  void request_stop() noexcept { post(stop_requested_); }
  void request_kill() noexcept { post(kill_requested_); }
  void mark_ready() noexcept { post(ready_); }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free, "requests come from signal handlers");

  void post(std::atomic<bool>& flag) noexcept {
    const int saved_errno = errno;
    flag.store(true);
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    errno = saved_errno;
  }

  void say(const std::string& message) { options_.log("[launcher] " + message); }

  void start_all() {
    for (Child& child : children_) {
      if (stopping_) {
        return;
      }
      start(child);
    }
  }

  void start(Child& child) {
    child.restart_at.reset();
    child.started_at = Clock::now();
    try {
      child.process = ChildProcess::spawn(child.spec.argv);
    } catch (const std::system_error& error) {
      fail(fmt::format("{} could not be started: {}", child.spec.name, error.what()));
    }
  }

  bool all_gone() const {
    return std::all_of(children_.begin(), children_.end(), [](const Child& child) {
      return !child.process.is_running() && !child.restart_at;
    });
  }

  void wait_for_event() {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
    auto deadline = Clock::time_point::max();
    for (const Child& child : children_) {
      if (child.restart_at) {
        deadline = std::min(deadline, *child.restart_at);
      }
      if (child.process.output_fd() >= 0) {
        fds.push_back({child.process.output_fd(), POLLIN, 0});
      }
      if (child.process.exit_fd() >= 0) {
        fds.push_back({child.process.exit_fd(), POLLIN, 0});
      } else if (child.process.is_running()) {
        deadline = std::min(deadline, Clock::now() + kReapInterval);
      }
    }
    if (stopping_) {
      deadline = std::min({deadline, kill_at_, next_order_at_});
    }
    int timeout_ms = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    ::poll(fds.data(), fds.size(), timeout_ms);
    std::uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof ignored);
  }

  void handle_requests(Clock::time_point now) {
    if (kill_requested_.load()) {
      if (result_.ok) {
        result_ = {false, "killed before it had stopped"};
      }
      begin_stop(now);
      kill_at_ = std::min(kill_at_, now);
    } else if (stop_requested_.load()) {
      begin_stop(now);
    }
  }

  void begin_stop(Clock::time_point now) {
    if (stopping_) {
      return;
    }
    stopping_ = true;
    kill_at_ = now + options_.stop_timeout * 9 / 10;
    next_order_at_ = now;  // the first order's turn is at once
    for (Child& child : children_) {
      child.restart_at.reset();
    }
  }

  void fail(const std::string& reason) {
    if (!stopping_) {
      result_ = {false, reason};
      say(reason + "; stopping the others");
      begin_stop(Clock::now());
    }
  }

  void reap(Child& child, Clock::time_point now) {
    const std::optional<ExitStatus> status = child.process.try_reap();
    if (!status) {
      return;
    }
    child.forward_output(1 << 10);
    child.log.flush();
    child.process.close_output();
    if (!stopping_) {
      handle_death(child, *status, now);
    }
  }

  void handle_death(Child& child, const ExitStatus& status, Clock::time_point now) {
    const std::string what = child.spec.name + " " + status.to_string();
    if (!ready_.load()) {
      const std::string tail = child.log.tail();
      fail(what + " during start-up" + (tail.empty() ? "" : "; it last said:\n" + tail));
      return;
    }
    if (!child.spec.restart) {
      if (status.is_clean()) {
        say(what + "; stopping the others");
        begin_stop(now);
      } else {
        fail(what);
      }
      return;
    }
    if (now - child.started_at >= options_.stable_after) {
      child.deaths_in_a_row = 0;
    }
    if (child.deaths_in_a_row >= options_.max_restarts) {
      fail(fmt::format("{}; giving up after {} restarts in a row", what, child.deaths_in_a_row));
      return;
    }
    const auto factor = std::int64_t{1} << std::min<std::size_t>(child.deaths_in_a_row, 20);
    const auto backoff =
        std::min(options_.restart_backoff * factor, options_.restart_backoff_limit);
    ++child.deaths_in_a_row;
    child.restart_at = now + backoff;
    say(fmt::format("{}; restart {} of {} in {} ms", what, child.deaths_in_a_row,
                    options_.max_restarts, backoff.count()));
  }

  void restart_due(Clock::time_point now) {
    for (Child& child : children_) {
      if (!stopping_ && child.restart_at && *child.restart_at <= now) {
        start(child);
      }
    }
  }

  /// SIGTERM order by order, each once; SIGKILL to whoever is left when the time is nearly over.
  void advance_stop(Clock::time_point now) {
    if (!stopping_) {
      return;
    }
    if (now >= kill_at_) {
      for (Child& child : children_) {
        if (child.process.is_running() && !child.killed) {
          say(child.spec.name + " has not stopped yet; killing it");
          child.killed = true;
        }
        child.process.send_signal(SIGKILL);
      }
      kill_at_ = now + kReapInterval;
      next_order_at_ = Clock::time_point::max();
      return;
    }
    while (true) {
      std::optional<int> order;  // lowest with a child that has not been told yet
      bool told_still_running = false;
      for (const Child& child : children_) {
        if (!child.process.is_running()) {
          continue;
        }
        if (child.terminated) {
          told_still_running = true;
        } else if (!order || child.spec.stop_order < *order) {
          order = child.spec.stop_order;
        }
      }
      if (!order) {
        next_order_at_ = Clock::time_point::max();
        return;
      }
      if (told_still_running && now < next_order_at_) {
        return;
      }
      for (Child& child : children_) {
        if (child.process.is_running() && child.spec.stop_order == *order) {
          child.process.send_signal(SIGTERM);
          child.terminated = true;
        }
      }
      next_order_at_ = now + options_.drain_timeout;
    }
  }

  SupervisorOptions options_;
  UniqueFd wake_;
  std::vector<Child> children_;
  SupervisorResult result_;
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> kill_requested_{false};
  std::atomic<bool> ready_{false};
  bool stopping_ = false;
  Clock::time_point kill_at_ = Clock::time_point::max();
  Clock::time_point next_order_at_ = Clock::time_point::max();
};

Supervisor::Supervisor(std::vector<ChildSpec> children, SupervisorOptions options)
    : impl_(std::make_unique<Impl>(std::move(children), std::move(options))) {}
Supervisor::~Supervisor() = default;
SupervisorResult Supervisor::run() { return impl_->run(); }
void Supervisor::request_stop() noexcept { impl_->request_stop(); }
void Supervisor::request_kill() noexcept { impl_->request_kill(); }
void Supervisor::mark_ready() noexcept { impl_->mark_ready(); }

}  // namespace fastfd::launcher
