#include "fastfd/ffn_server/ffn_server.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "fastfd/core/epoch_loop.h"
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
        fetches_while_waiting_(options.fetches_while_waiting),
        worker_(options, spec, std::move(weights)),
        loop_(
            "ffn-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::FfnPort> port) {
    loop_.begin(epoch, std::move(port));
  }

  void submit_plan(FfnStepPlan plan) {
    if (const auto port = loop_.submit(std::move(plan))) {
      port->ring();  // the loop may sleep on its doorbell for another lane's dispatch
    }
  }

  void stop_epoch() { loop_.stop(); }

  ServerProgress progress() const { return worker_.progress(); }

  FfnLoad load() const {
    return {.ffn_rank = rank_,
            .layers_run = worker_.layers_run().load(std::memory_order_relaxed),
            .rows_run = worker_.rows_run().load(std::memory_order_relaxed),
            .compute_us = static_cast<double>(compute_ns_.load(std::memory_order_relaxed)) * 1e-3,
            .wait_us = static_cast<double>(wait_ns_.load(std::memory_order_relaxed)) * 1e-3};
  }

 private:
  Status serve_epoch() {
    auto& port = loop_.port();
    worker_.begin_epoch(loop_.epoch(), &port, loop_.abort_word());
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
      if (fetches_while_waiting_) {
        worker_.fetch_next_weights([&] { return port.doorbell() != doorbell; });
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
    std::optional<FfnStepPlan> plan = loop_.take(block);
    for (; plan; plan = loop_.take(/*block=*/false)) {
      worker_.add_plan(*plan);
    }
    return !loop_.aborted();
  }

  const ServerRank rank_;
  const bool fetches_while_waiting_;
  std::atomic<std::uint64_t> compute_ns_{0};
  std::atomic<std::uint64_t> wait_ns_{0};

  FfnWorker worker_;                                 // loop thread only, but for its counters
  EpochLoop<FfnStepPlan, transport::FfnPort> loop_;  // last: it uses all of the above
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
