#include "cluster/server_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/process_key.h"
#include "fastfd/core/logging.h"
#include "fastfd/core/stop_orders.h"

namespace fastfd::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// When a server that was told to stop leaves. systemd, and others that signal all processes of a
// service at once, tell the servers while the coordinator drains and needs them. So a server that
// is part of a cluster goes on until its coordinator dismisses it or their stream ends, at the
// latest after a time of grace; a server that is not, or that is told again, leaves at once.
class Departure final : public control_plane::ServerHandler {
 public:
  /// `client` is there before the first signal.
  Departure(control_plane::ServerHandler& member,
            const std::unique_ptr<control_plane::ControlClient>& client, milliseconds grace)
      : member_(member), client_(client), grace_(grace) {}

  void on_signal() {
    const std::lock_guard lock(mutex_);
    if (orders_.is_impatient(steady_clock::now()) || !in_cluster_) {
      client_->stop();
    } else if (!told_) {
      told_ = true;
      spdlog::info("told to stop: serving until the coordinator is done, for {} s at most",
                   std::chrono::duration<double>(grace_).count());
      timer_ = std::jthread([this](const std::stop_token& over) { wait_out(over); });
    }
  }

  Status on_topology(const control_plane::Topology& topology, std::stop_token abandoned) override {
    set_in_cluster(true);
    return member_.on_topology(topology, std::move(abandoned));
  }
  void on_go(Epoch epoch) override { member_.on_go(epoch); }
  void on_plan(AttentionStepPlan plan) override { member_.on_plan(std::move(plan)); }
  void on_plan(FfnStepPlan plan) override { member_.on_plan(std::move(plan)); }
  void on_stop(Epoch next_epoch) override { member_.on_stop(next_epoch); }
  void on_disconnect(const std::string& reason) override {
    set_in_cluster(false);
    member_.on_disconnect(reason);
  }
  void on_shutdown() override { member_.on_shutdown(); }
  void on_refused(const std::string& reason) override {
    member_.on_refused(reason);
    const std::lock_guard lock(mutex_);
    refusal_ = reason;
  }
  control_plane::Heartbeat heartbeat() override { return member_.heartbeat(); }

  /// Why the coordinator refused this server; empty if it did not.
  std::string refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  void set_in_cluster(bool in_cluster) {
    const std::lock_guard lock(mutex_);
    in_cluster_ = in_cluster;
    if (!in_cluster && told_) {
      client_->stop();  // instead of connecting again
    }
  }

  void wait_out(const std::stop_token& over) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, over, grace_, [] { return false; });
    if (!over.stop_requested()) {
      client_->stop();
    }
  }

  control_plane::ServerHandler& member_;
  const std::unique_ptr<control_plane::ControlClient>& client_;
  const milliseconds grace_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool in_cluster_ = false;
  bool told_ = false;
  StopOrders orders_;
  std::string refusal_;
  std::jthread timer_;  // last: joined before what it uses goes
};

// A drain lasts so long; what is cut off at its end needs a moment to be told.
milliseconds departure_grace(const config::ClusterConfig& config) {
  return milliseconds(config.faults.drain_timeout_ms) + milliseconds(1000);
}

control_plane::ControlClientOptions client_options(const config::ClusterConfig& config) {
  control_plane::ControlClientOptions options;
  options.coordinator_address = config.coordinator.control.to_string();
  options.heartbeat_interval = milliseconds(config.faults.heartbeat_ms);
  return options;
}

}  // namespace

ServerProcess::ServerProcess(const config::ClusterConfig& config, ServerRank rank)
    : rank_(rank), blueprint_(config) {
  require_process_transport(config);
}

transport::EndpointOptions ServerProcess::endpoint_options(Role role) const {
  transport::EndpointOptions options;
  options.role = role;
  options.rank = rank_;
  options.incarnation = incarnation_;
  options.shape = blueprint_.window_shape();
  options.wait_policy = blueprint_.wait_policy();
  return options;
}

double ServerProcess::seconds_since_start() const {
  return std::chrono::duration<double>(steady_clock::now() - start_).count();
}

attention_server::ResultSink ServerProcess::result_sink() {
  return [this](LaneResult result) { client(Role::kAttention)->send_result(std::move(result)); };
}

attention_server::FailureSink ServerProcess::failure_sink(Role role) {
  return [this, role](const Status& status) { client(role)->send_failure(status); };
}

control_plane::Registration ServerProcess::registration(const Seat& seat) const {
  control_plane::Registration registration;
  registration.role = seat.role;
  registration.rank = rank_;
  registration.incarnation = incarnation_;
  registration.pid = static_cast<std::uint32_t>(getpid());
  registration.process_key = own_process_key();
  registration.data_plane_address = seat.data_plane_address;
  registration.contract = blueprint_.contract();
  registration.num_pages = seat.num_pages;
  return registration;
}

int ServerProcess::serve(std::span<const Seat> seats) {
  const auto& config = blueprint_.config();
  std::deque<Departure> departures;  // which don't move
  for (const Seat& seat : seats) {
    auto& client = this->client(seat.role);
    auto& departure = departures.emplace_back(*seat.member, client, departure_grace(config));
    client = std::make_unique<control_plane::ControlClient>(client_options(config),
                                                            registration(seat), departure);
  }
  signals_.set_handler([&departures](const Signal& /*signal*/) {
    for (Departure& departure : departures) {
      departure.on_signal();
    }
  });
  const auto run = [this, seats](Role role) {
    client(role)->run();
    for (const Seat& other : seats) {
      client(other.role)->stop();  // halves of a rank come and go together
    }
  };
  {
    std::vector<std::jthread> threads;
    for (const Seat& seat : seats.subspan(1)) {
      threads.emplace_back(run, seat.role);
    }
    run(seats.front().role);
  }
  signals_.set_handler([](const Signal& /*signal*/) {});
  for (const Seat& seat : seats) {
    // The data plane is left, and no result is on its way when the client goes.
    seat.member->on_shutdown();
  }
  for (Departure& departure : departures) {
    if (const std::string refusal = departure.refusal(); !refusal.empty()) {
      spdlog::error("refused by the coordinator: {}", refusal);
      return 1;
    }
  }
  spdlog::info("stopped");
  return 0;
}

}  // namespace fastfd::cluster
