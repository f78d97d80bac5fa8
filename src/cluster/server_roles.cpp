#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>

#include "cluster/members.h"
#include "cluster/process_key.h"
#include "cluster/shm_connect.h"
#include "cluster/signal_watcher.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/core/logging.h"

namespace fastfd::cluster {
namespace {

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

transport::ShmEndpointOptions endpoint_options(const Blueprint& blueprint, Role role,
                                               ServerRank rank, std::uint64_t incarnation) {
  transport::ShmEndpointOptions options;
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

// Runs the client until the cluster or a signal ends it.
template <typename Member>
int serve(SignalWatcher& signals, control_plane::ControlClient& client, const Member& member) {
  signals.set_handler([&client](int /*signal*/) { client.stop(); });
  client.run();
  signals.set_handler([](int /*signal*/) {});
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

// The sinks of a member use the client, whose handler is the member.
struct LateClient {
  std::unique_ptr<control_plane::ControlClient> client;
};

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
        blueprint, rank, std::move(weights), shm_attention_connect(endpoint),
        [&late](LaneResult result) { late.client->send_result(std::move(result)); },
        [&late](const Status& status) { late.client->send_failure(status); });
    late.client = std::make_unique<control_plane::ControlClient>(
        client_options(config),
        make_registration(blueprint, Role::kAttention, rank, endpoint, incarnation), member);
    const int status = serve(signals, *late.client, member);
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
    FfnMember member(blueprint, rank, std::move(weights), shm_ffn_connect(endpoint),
                     [&late](const Status& status) { late.client->send_failure(status); });
    late.client = std::make_unique<control_plane::ControlClient>(
        client_options(config),
        make_registration(blueprint, Role::kFfn, rank, endpoint, incarnation), member);
    const int status = serve(signals, *late.client, member);
    member.on_shutdown();
    return status;
  });
}

}  // namespace fastfd::cluster
