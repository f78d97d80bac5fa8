#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "cluster/members.h"
#include "cluster/process_key.h"
#include "cluster/shm_connect.h"
#include "cluster/signal_watcher.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/core/logging.h"
#include "fastfd/core/stop_orders.h"

namespace fastfd::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

control_plane::Registration make_registration(const Blueprint& blueprint, Role role,
                                              ServerRank rank,
                                              const transport::ShmEndpoint& endpoint,
                                              std::uint64_t incarnation) {
  control_plane::Registration registration;
  registration.role = role;
  registration.rank = rank;
  registration.incarnation = incarnation;
  registration.pid = static_cast<std::uint32_t>(getpid());
  registration.process_key = own_process_key();
  registration.data_plane_address = endpoint.address();
  registration.contract = blueprint.contract();
  return registration;
}

control_plane::ControlClientOptions client_options(const config::ClusterConfig& config) {
  control_plane::ControlClientOptions options;
  options.coordinator_address = config.coordinator.control.to_string();
  options.heartbeat_interval = std::chrono::milliseconds(config.faults.heartbeat_ms);
  return options;
}

transport::EndpointOptions endpoint_options(const Blueprint& blueprint, Role role,
                                               ServerRank rank, std::uint64_t incarnation) {
  transport::EndpointOptions options;
  options.role = role;
  options.rank = rank;
  options.incarnation = incarnation;
  options.shape = blueprint.window_shape();
  options.wait_policy = blueprint.wait_policy();
  return options;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The sinks of a member use the client, whose handler is the member.
struct LateClient {
  std::unique_ptr<control_plane::ControlClient> client;
};

// When a server that was told to stop leaves. systemd, and others that signal all processes of a
// service at once, tell the servers while the coordinator drains and needs them. So a server that
// is part of a cluster goes on until its coordinator dismisses it or their stream ends, at the
// latest after a time of grace; a server that is not, or that is told again, leaves at once.
class Departure final : public control_plane::ServerHandler {
 public:
  Departure(control_plane::ServerHandler& member, LateClient& late, milliseconds grace)
      : member_(member), late_(late), grace_(grace) {}

  void on_signal() {
    const std::lock_guard lock(mutex_);
    if (orders_.is_impatient(steady_clock::now()) || !in_cluster_) {
      late_.client->stop();
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
  void on_refused(const std::string& reason) override { member_.on_refused(reason); }
  control_plane::Heartbeat heartbeat() override { return member_.heartbeat(); }

 private:
  void set_in_cluster(bool in_cluster) {
    const std::lock_guard lock(mutex_);
    in_cluster_ = in_cluster;
    if (!in_cluster && told_) {
      late_.client->stop();  // instead of connecting again
    }
  }

  void wait_out(const std::stop_token& over) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, over, grace_, [] { return false; });
    if (!over.stop_requested()) {
      late_.client->stop();
    }
  }

  control_plane::ServerHandler& member_;
  LateClient& late_;
  const milliseconds grace_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool in_cluster_ = false;
  bool told_ = false;
  StopOrders orders_;
  std::jthread timer_;  // last: joined before what it uses goes
};

// A drain lasts so long; what is cut off at its end needs a moment to be told.
milliseconds departure_grace(const config::ClusterConfig& config) {
  return milliseconds(config.faults.drain_timeout_ms) + milliseconds(1000);
}

// Runs the client until the cluster or a signal ends it.
template <typename Member>
int serve(SignalWatcher& signals, control_plane::ControlClient& client, Departure& departure,
          const Member& member) {
  signals.set_handler([&departure](const Signal& /*signal*/) { departure.on_signal(); });
  client.run();
  signals.set_handler([](const Signal& /*signal*/) {});
  if (const std::string refusal = member.refusal(); !refusal.empty()) {
    spdlog::error("refused by the coordinator: {}", refusal);
    return 1;
  }
  spdlog::info("stopped");
  return 0;
}

// What a role can fail with before it serves becomes one log line and exit status 1.
template <typename Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}

}  // namespace

int run_attention_server(const config::ClusterConfig& config, ServerRank rank) {
  init_logging(fmt::format("attention {}", rank), config.log_level);
  return guarded([&] {
    SignalWatcher signals;
    const auto start = std::chrono::steady_clock::now();
    const Blueprint blueprint(config);
    const std::uint64_t incarnation = control_plane::draw_incarnation();
    transport::ShmEndpoint endpoint(
        endpoint_options(blueprint, Role::kAttention, rank, incarnation));
    auto weights = std::make_shared<const model::AttentionWeights>(
        model::load_attention_weights(config.model.path, blueprint.spec()));
    spdlog::info("loaded {:.1f} MiB of weights in {:.2f} s; {}",
                 static_cast<double>(weights->num_bytes()) / (1 << 20), seconds_since(start),
                 blueprint.describe_attention_memory());
    LateClient late;
    AttentionMember member(
        shm_attention_connect(endpoint), blueprint.attention_options(rank), blueprint.spec(),
        std::move(weights),
        [&late](LaneResult result) { late.client->send_result(std::move(result)); },
        [&late](const Status& status) { late.client->send_failure(status); });
    Departure departure(member, late, departure_grace(config));
    late.client = std::make_unique<control_plane::ControlClient>(
        client_options(config),
        make_registration(blueprint, Role::kAttention, rank, endpoint, incarnation), departure);
    const int status = serve(signals, *late.client, departure, member);
    member.on_shutdown();  // no result may be on its way when the client goes
    return status;
  });
}

int run_ffn_server(const config::ClusterConfig& config, ServerRank rank) {
  init_logging(fmt::format("ffn {}", rank), config.log_level);
  return guarded([&] {
    SignalWatcher signals;
    const auto start = std::chrono::steady_clock::now();
    const Blueprint blueprint(config);
    const std::uint64_t incarnation = control_plane::draw_incarnation();
    transport::ShmEndpoint endpoint(endpoint_options(blueprint, Role::kFfn, rank, incarnation));
    const auto placement = blueprint.placement().make();
    auto weights = std::make_shared<const model::FfnWeights>(
        model::load_ffn_weights(config.model.path, blueprint.spec(), placement, rank));
    spdlog::info("loaded {} of {} experts of {} layers, {:.1f} MiB, in {:.2f} s; {}",
                 placement.experts_of(rank).size(), placement.num_experts(),
                 blueprint.spec().num_layers, static_cast<double>(weights->num_bytes()) / (1 << 20),
                 seconds_since(start), blueprint.describe_ffn_memory());
    LateClient late;
    FfnMember member(shm_ffn_connect(endpoint), blueprint.ffn_options(rank), blueprint.spec(),
                     std::move(weights),
                     [&late](const Status& status) { late.client->send_failure(status); });
    Departure departure(member, late, departure_grace(config));
    late.client = std::make_unique<control_plane::ControlClient>(
        client_options(config),
        make_registration(blueprint, Role::kFfn, rank, endpoint, incarnation), departure);
    const int status = serve(signals, *late.client, departure, member);
    member.on_shutdown();
    return status;
  });
}

}  // namespace fastfd::cluster
