#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/logging.h"
#include "fastfd/core/status.h"

namespace fastfd {

/// The thread of a server's compute loop and the epochs it serves: what attention and FFN servers
/// have in common. `Port` has begin_epoch(Epoch) and abort(); `Plan` has a member `epoch`.
///
/// begin, submit and stop may be called from any thread; take and the accessors below it only from
/// inside `serve`. Declare it last in its owner: the thread uses what `serve` uses.
template <typename Plan, typename Port>
class EpochLoop {
 public:
  /// Runs plans until the epoch is abandoned (returns kAborted) or something fails. Exceptions are
  /// taken for kInternal: a broken invariant ends the epoch, not the process.
  using Serve = std::function<Status()>;
  /// Told why an epoch ended from this side; never of kAborted.
  using FailureSink = std::function<void(Status)>;

  /// `name` is the thread's, at most 15 characters.
  EpochLoop(std::string name, Serve serve, FailureSink on_failure)
      : name_(std::move(name)),
        serve_(std::move(serve)),
        on_failure_(std::move(on_failure)),
        thread_([this] { run(); }) {}

  ~EpochLoop() {
    stop();
    {
      const std::lock_guard lock(mutex_);
      shutdown_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  EpochLoop(const EpochLoop&) = delete;
  EpochLoop& operator=(const EpochLoop&) = delete;

  /// Requires that no epoch is active.
  void begin(Epoch epoch, std::shared_ptr<Port> port) {
    {
      const std::lock_guard lock(mutex_);
      check(!active_ && !running_, "an epoch is active already");
      epoch_ = epoch;
      port_ = std::move(port);
      plans_.clear();
      abort_.store(false);
      failed_.reset();
      port_->begin_epoch(epoch);
      active_ = true;
    }
    changed_.notify_all();
  }

  /// Queues a plan of the active epoch and returns its port; null: it was of another one, and is
  /// dropped.
  std::shared_ptr<Port> submit(Plan plan) {
    std::shared_ptr<Port> port;
    {
      const std::lock_guard lock(mutex_);
      if (!active_ || plan.epoch != epoch_) {
        return nullptr;
      }
      plans_.push_back(std::move(plan));
      port = port_;
    }
    changed_.notify_all();
    return port;
  }

  /// Raises the abort word and blocks until `serve` has returned, so that nothing is written to a
  /// window any more. Drops plans that wait. Idempotent.
  void stop() {
    std::unique_lock lock(mutex_);
    active_ = false;
    abort_.store(true);
    if (port_) {
      port_->abort();
    }
    changed_.notify_all();
    changed_.wait(lock, [this] { return !running_; });
    plans_.clear();
  }

  /// Ends the epoch with `why` from outside of `serve`, which sees it as abandoned; the
  /// epoch's status is `why` unless `serve` has one of its own. The first one counts; none does
  /// once the epoch is over.
  void fail(Status why) {
    {
      const std::lock_guard lock(mutex_);
      if (!active_ || failed_) {
        return;
      }
      failed_ = std::move(why);
      abort_.store(true);
    }
    changed_.notify_all();
  }

  /// The next plan; nullopt if there is none yet (without `block`) or the epoch is over.
  std::optional<Plan> take(bool block) {
    std::unique_lock lock(mutex_);
    if (block) {
      changed_.wait(lock, [this] { return !active_ || failed_ || !plans_.empty(); });
    }
    if (!active_ || failed_ || plans_.empty()) {
      return std::nullopt;
    }
    std::optional<Plan> plan(std::move(plans_.front()));
    plans_.pop_front();
    return plan;
  }

  /// The next plan; nullopt if none came in time or the epoch is over (aborted()).
  std::optional<Plan> take_within(std::chrono::milliseconds timeout) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, timeout, [this] { return !active_ || failed_ || !plans_.empty(); });
    }
    return take(/*block=*/false);
  }

  Epoch epoch() const { return epoch_; }
  Port& port() const { return *port_; }
  /// True once the epoch is abandoned. Long kernels poll the word itself.
  bool aborted() const { return abort_.load(std::memory_order_relaxed); }
  const std::atomic<bool>* abort_word() const { return &abort_; }

 private:
  void run() {
    pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return shutdown_ || active_; });
      if (shutdown_) {
        return;
      }
      running_ = true;
      lock.unlock();
      Status status = serve_guarded();
      if (std::optional<Status> failed = take_failure();
          failed && status.code() == StatusCode::kAborted) {
        status = *std::move(failed);
      }
      if (!status && status.code() != StatusCode::kAborted) {
        spdlog::error("epoch {} ended: {}", epoch_, status.to_string());
        on_failure_(std::move(status));
      }
      lock.lock();
      running_ = false;
      active_ = false;
      changed_.notify_all();
    }
  }

  std::optional<Status> take_failure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failed_, std::nullopt);
  }

  Status serve_guarded() {
    try {
      return serve_();
    } catch (const std::exception& error) {
      return {StatusCode::kInternal, error.what()};
    }
  }

  const std::string name_;
  const Serve serve_;
  const FailureSink on_failure_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool shutdown_ = false;
  bool active_ = false;   // plans are taken
  bool running_ = false;  // the thread is inside serve_
  // Written under the mutex while `serve` does not run, so `serve` reads them without it.
  Epoch epoch_ = 0;
  std::shared_ptr<Port> port_;
  std::deque<Plan> plans_;
  std::optional<Status> failed_;  // by fail()
  std::atomic<bool> abort_{false};
  std::thread thread_;
};

}  // namespace fastfd
