#include "fastfd/ffn_server/ffn_server.h"

#include <pthread.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "fastfd/core/check.h"
#include "fastfd/core/logging.h"
#include "ffn_server/ffn_worker.h"

namespace fastfd::ffn_server {
namespace {

using Clock = std::chrono::steady_clock;

// How long nothing arrives before the loop says whom it waits for.
constexpr std::chrono::seconds kWaitReport{5};

std::uint64_t to_ns(Clock::duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

class FfnServer::Impl {
 public:
  Impl(const FfnServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::FfnWeights> weights, FailureSink on_failure)
      : rank_(options.rank),
        on_failure_(std::move(on_failure)),
        worker_(options, spec, std::move(weights)),
        thread_([this] { run(); }) {}

  ~Impl() {
    stop_epoch();
    {
      const std::lock_guard lock(mutex_);
      shutdown_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::FfnPort> port) {
    {
      const std::lock_guard lock(mutex_);
      check(!active_ && !running_, "an epoch is active already");
      epoch_ = epoch;
      port_ = std::move(port);
      plans_.clear();
      abort_.store(false);
      port_->begin_epoch(epoch);
      active_ = true;
    }
    changed_.notify_all();
  }

  void submit_plan(FfnStepPlan plan) {
    std::shared_ptr<transport::FfnPort> port;
    {
      const std::lock_guard lock(mutex_);
      if (!active_ || plan.epoch != epoch_) {
        return;
      }
      plans_.push_back(std::move(plan));
      port = port_;
    }
    changed_.notify_all();
    // The loop may sleep on its doorbell for another lane's dispatch.
    port->ring();
  }

  void stop_epoch() {
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

  ServerProgress progress() const { return worker_.progress(); }

  FfnLoad load() const {
    return {.ffn_rank = rank_,
            .layers_run = worker_.layers_run().load(std::memory_order_relaxed),
            .rows_run = worker_.rows_run().load(std::memory_order_relaxed),
            .compute_us = static_cast<double>(compute_ns_.load(std::memory_order_relaxed)) * 1e-3,
            .wait_us = static_cast<double>(wait_ns_.load(std::memory_order_relaxed)) * 1e-3};
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "ffn");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return shutdown_ || active_; });
      if (shutdown_) {
        return;
      }
      running_ = true;
      const auto port = port_;
      lock.unlock();
      Status status = serve_epoch_guarded(*port);
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

  // A broken invariant ends the epoch, not the process: the coordinator hears why.
  Status serve_epoch_guarded(transport::FfnPort& port) {
    try {
      return serve_epoch(port);
    } catch (const std::exception& error) {
      return {StatusCode::kInternal, error.what()};
    }
  }

  Status serve_epoch(transport::FfnPort& port) {
    worker_.begin_epoch(epoch_, &port, &abort_);
    for (;;) {
      // Taken before looking for work, so that a ring in between ends the wait below at once.
      const std::uint32_t doorbell = port.doorbell();
      if (!take_plans(/*block=*/!worker_.has_work())) {
        return {StatusCode::kAborted, "epoch abandoned"};
      }
      const auto began = Clock::now();
      auto outcome = worker_.run_ready();
      if (!outcome) {
        return outcome.status();
      }
      if (*outcome == FfnWorker::Outcome::kRan) {
        compute_ns_.fetch_add(to_ns(Clock::now() - began), std::memory_order_relaxed);
        continue;
      }
      const auto woken = port.wait(doorbell, kWaitReport);
      wait_ns_.fetch_add(to_ns(Clock::now() - began), std::memory_order_relaxed);
      if (woken == transport::WaitOutcome::kTimedOut) {
        spdlog::warn("still waiting: {}", worker_.describe_waits());
      }
    }
  }

  // Hands published plans to the worker; with `block`, sleeps until there is one. False: the epoch
  // is over.
  bool take_plans(bool block) {
    std::unique_lock lock(mutex_);
    if (block) {
      changed_.wait(lock, [this] { return !active_ || !plans_.empty(); });
    }
    if (!active_) {
      return false;
    }
    for (const FfnStepPlan& plan : plans_) {
      worker_.add_plan(plan);
    }
    plans_.clear();
    return true;
  }

  const ServerRank rank_;
  const FailureSink on_failure_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool shutdown_ = false;
  bool active_ = false;   // plans are taken
  bool running_ = false;  // the loop is inside serve_epoch
  Epoch epoch_ = 0;
  std::shared_ptr<transport::FfnPort> port_;
  std::deque<FfnStepPlan> plans_;
  std::atomic<bool> abort_{false};
  std::atomic<std::uint64_t> compute_ns_{0};
  std::atomic<std::uint64_t> wait_ns_{0};

  FfnWorker worker_;    // loop thread only, but for its counters
  std::thread thread_;  // last: it uses all of the above
};

FfnServer::FfnServer(const FfnServerOptions& options, const model::ModelSpec& spec,
                     std::shared_ptr<const model::FfnWeights> weights, FailureSink on_failure)
    : impl_(std::make_unique<Impl>(options, spec, std::move(weights), std::move(on_failure))) {}
FfnServer::~FfnServer() = default;

void FfnServer::begin_epoch(Epoch epoch, std::shared_ptr<transport::FfnPort> port) {
  impl_->begin_epoch(epoch, std::move(port));
}
void FfnServer::submit_plan(FfnStepPlan plan) { impl_->submit_plan(std::move(plan)); }
void FfnServer::stop_epoch() { impl_->stop_epoch(); }
ServerProgress FfnServer::progress() const { return impl_->progress(); }
FfnLoad FfnServer::load() const { return impl_->load(); }

}  // namespace fastfd::ffn_server
