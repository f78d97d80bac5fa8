#include "cluster/colocated.h"

#include <algorithm>
#include <chrono>

namespace fastfd::cluster {

using Clock = std::chrono::steady_clock;

// The inner port with a wait that works instead of sleeping.
class ColocatedFfn::Port final : public transport::AttentionPort {
 public:
  Port(ColocatedFfn& ffn, std::shared_ptr<transport::AttentionPort> inner,
       std::shared_ptr<transport::FfnPort> ffn_port)
      : ffn_(ffn), inner_(std::move(inner)), ffn_port_(std::move(ffn_port)) {}

  std::uint32_t num_ffn_servers() const override { return inner_->num_ffn_servers(); }
  transport::DispatchWriter dispatch_buffer(ServerRank rank, const transport::HopId& hop) override {
    return inner_->dispatch_buffer(rank, hop);
  }
  void send_dispatch(ServerRank rank, const transport::HopId& hop, std::uint32_t num_rows,
                     std::uint32_t num_routes) override {
    inner_->send_dispatch(rank, hop, num_rows, num_routes);
  }
  transport::WaitOutcome wait_combine(const transport::HopId& hop,
                                      std::chrono::microseconds /*timeout*/) override {
    while (!inner_->combine_ready(hop)) {
      if (!ffn_.run_some(/*block=*/true)) {
        return transport::WaitOutcome::kAborted;
      }
    }
    return transport::WaitOutcome::kReady;
  }
  bool combine_ready(const transport::HopId& hop) override { return inner_->combine_ready(hop); }
  const std::byte* combine_rows(ServerRank rank, const transport::HopId& hop) const override {
    return inner_->combine_rows(rank, hop);
  }
  std::string missing_peers(const transport::HopId& hop) const override {
    return inner_->missing_peers(hop);
  }
  void abort() override {
    inner_->abort();
    {
      const std::lock_guard lock(ffn_.mutex_);
      ffn_.aborted_ = true;
    }
    ffn_.abort_.store(true);
    ffn_.changed_.notify_all();
  }
  void ring() override { ffn_.changed_.notify_all(); }
  void begin_epoch(Epoch epoch) override {
    inner_->begin_epoch(epoch);
    ffn_port_->begin_epoch(epoch);
    const std::lock_guard lock(ffn_.mutex_);
    ffn_.aborted_ = false;
    ffn_.abort_.store(false);
    // The coordinator may have published the epoch's first plan already.
    ffn_.epoch_ = epoch;
    ffn_.worker_.begin_epoch(epoch, ffn_port_.get(), &ffn_.abort_);
  }

 private:
  ColocatedFfn& ffn_;
  std::shared_ptr<transport::AttentionPort> inner_;
  std::shared_ptr<transport::FfnPort> ffn_port_;
};

namespace {

ffn_server::FfnServerOptions ffn_options(const Blueprint& blueprint,
                                         std::shared_ptr<device::WorkerPool> workers) {
  auto options = blueprint.ffn_options(0);
  options.workers = std::move(workers);
  return options;
}

}  // namespace

ColocatedFfn::ColocatedFfn(const Blueprint& blueprint,
                           std::shared_ptr<const model::FfnWeights> weights)
    : workers_(device::WorkerPool::make_if_several(
          std::max(blueprint.config().attention.threads, blueprint.config().ffn.threads),
          blueprint.worker_spin())),
      worker_(ffn_options(blueprint, workers_), blueprint.spec(), std::move(weights)) {}

attention_server::AttentionServerOptions ColocatedFfn::share_workers(
    attention_server::AttentionServerOptions options) const {
  options.workers = workers_;
  options.fetches_while_waiting = false;
  return options;
}

std::shared_ptr<transport::AttentionPort> ColocatedFfn::make_port(
    Epoch /*epoch*/, const transport::InprocFabric& fabric) {
  return std::make_shared<Port>(*this, fabric.attention_port(0), fabric.ffn_port(0));
}

void ColocatedFfn::submit_plan(FfnStepPlan plan) {
  {
    const std::lock_guard lock(mutex_);
    plans_.push_back(std::move(plan));
  }
  changed_.notify_all();
}

double ColocatedFfn::compute_us() const {
  return static_cast<double>(compute_ns_.load(std::memory_order_relaxed)) * 1e-3;
}

// Runs one hop, or sleeps until a plan comes. False: aborted, or the worker failed.
bool ColocatedFfn::run_some(bool block) {
  {
    std::unique_lock lock(mutex_);
    if (block && !worker_.has_work()) {
      changed_.wait(lock, [this] { return aborted_ || !plans_.empty(); });
    }
    if (aborted_) {
      return false;
    }
    for (const FfnStepPlan& plan : plans_) {
      if (plan.epoch == epoch_) {
        worker_.add_plan(plan);
      }
    }
    plans_.clear();
  }
  const auto began = Clock::now();
  const auto outcome = worker_.run_ready();
  compute_ns_.fetch_add(
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count()),
      std::memory_order_relaxed);
  if (!outcome) {
    return false;
  }
  if (*outcome == ffn_server::FfnWorker::Outcome::kNothingReady) {
    // The dispatch of a step whose FFN plan is still on its way.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return aborted_ || !plans_.empty(); });
  }
  return true;
}

}  // namespace fastfd::cluster
