#include "fastfd/cluster/local_cluster.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>

#include "cluster/colocated.h"
#include "cluster/direct_link.h"
#include "cluster/endpoint_connect.h"
#include "cluster/gpu_colocated.h"
#include "cluster/gpu_memory.h"
#include "cluster/gpu_part.h"
#include "cluster/members.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/control_plane/control_server.h"
#include "fastfd/coordinator/engine.h"
#include "fastfd/transport/device_port.h"
#include "fastfd/transport/inproc.h"

namespace fastfd::cluster {
namespace {

constexpr std::chrono::milliseconds kHeartbeatInterval{200};

// The fabric of each epoch: whoever of its members comes first makes it.
template <typename Fabric>
class FabricExchange {
 public:
  using Make = std::function<std::shared_ptr<Fabric>(Epoch epoch)>;
  explicit FabricExchange(Make make) : make_(std::move(make)) {}

  std::shared_ptr<Fabric> fabric(Epoch epoch) {
    const std::lock_guard lock(mutex_);
    if (epoch_ != epoch) {
      epoch_ = epoch;
      fabric_ = make_(epoch);
    }
    return fabric_;
  }

 private:
  const Make make_;
  std::mutex mutex_;
  Epoch epoch_ = 0;
  std::shared_ptr<Fabric> fabric_;
};

// Computing and waiting of one attention server, by its results.
struct AttentionMeter {
  std::atomic<double> compute_us{0.0};
  std::atomic<double> wait_us{0.0};
};

// One server and its way to the coordinator: a direct link or a gRPC client with its thread.
struct Participant {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  std::uint32_t num_pages = 0;  // of an attention server that finds out by itself
  std::unique_ptr<transport::ShmEndpoint> endpoint;
  std::unique_ptr<control_plane::ServerHandler> handler;
  std::shared_ptr<DirectLink> link;
  std::unique_ptr<control_plane::ControlClient> client;
  std::thread client_thread;
};

std::uint64_t gpu_bytes(const ClusterWeights& weights) {
  std::uint64_t num_bytes = weights.gpu_attention->num_bytes();
  for (const auto& ffn : weights.gpu_ffn) {
    num_bytes += ffn->num_bytes();
  }
  return num_bytes;
}

}  // namespace

ClusterWeights load_cluster_weights(const Blueprint& blueprint) {
  const auto& config = blueprint.config();
  const auto& path = config.model.path;
  const auto placement = blueprint.placement().make();
  ClusterWeights weights;
  if (config.on_gpus()) {
    const auto device = device::CudaDevice::open(config.attention.device.first_gpu);
    weights.gpu_attention = std::make_shared<const model::DeviceAttentionWeights>(
        model::upload_attention_weights(path, blueprint.spec(), device));
    for (ServerRank rank = 0; rank < config.ffn.servers; ++rank) {
      weights.gpu_ffn.push_back(std::make_shared<const model::DeviceFfnWeights>(
          model::upload_ffn_weights(path, blueprint.spec(), placement, rank, device)));
    }
    return weights;
  }
  weights.attention = std::make_shared<const model::AttentionWeights>(
      model::load_attention_weights(path, blueprint.spec()));
  for (ServerRank rank = 0; rank < config.ffn.servers; ++rank) {
    weights.ffn.push_back(std::make_shared<const model::FfnWeights>(
        model::load_ffn_weights(path, blueprint.spec(), placement, rank)));
  }
  return weights;
}

class LocalCluster::Impl {
 public:
  Impl(const Blueprint& blueprint, const ClusterWeights& weights,
       const LocalClusterOptions& options)
      : blueprint_(blueprint),
        options_(options),
        exchange_([this](Epoch epoch) {
          const auto& config = blueprint_.config();
          return std::make_shared<transport::InprocFabric>(
              blueprint_.window_shape(), config.attention.servers, config.ffn.servers,
              blueprint_.wait_policy(), epoch);
        }),
        gpu_exchange_([this](Epoch /*epoch*/) {
          const auto& config = blueprint_.config();
          return std::make_shared<transport::InprocDeviceFabric>(
              device::CudaDevice::open(config.attention.device.first_gpu),
              blueprint_.window_shape(), config.attention.servers, config.ffn.servers);
        }) {
    if (blueprint.config().on_gpus()) {
      gpu_memory_.emplace(device::CudaDevice::open(blueprint.config().attention.device.first_gpu),
                          gpu_bytes(weights));
    }
    make_engine();
    for (ServerRank rank = 0; rank < blueprint.config().attention.servers; ++rank) {
      add_member(Role::kAttention, rank, weights);
    }
    for (ServerRank rank = 0; rank < blueprint.config().ffn.servers; ++rank) {
      add_member(Role::kFfn, rank, weights);
    }
    for (auto& member : members_) {
      join(*member);
    }
    if (!options.grpc) {
      heartbeats_ = std::jthread([this](const std::stop_token& stop) { send_heartbeats(stop); });
    }
  }

  ~Impl() {
    if (heartbeats_.joinable()) {
      heartbeats_.request_stop();
      heartbeats_.join();
    }
    for (auto& member : members_) {
      if (member->client) {
        member->client->stop();
        member->client_thread.join();
      }
      if (member->link) {
        member->link->close();
      }
      member->handler->on_shutdown();  // no result is on its way any more
    }
    control_.reset();
    engine_.reset();  // and no command
  }

  EngineClient& engine() { return *engine_; }

  double metric(const std::string& name) const {
    double sum = 0.0;
    for (const auto& metric : engine_->metrics()) {
      sum += metric.name == name ? metric.value : 0.0;
    }
    return sum;
  }

  FfnLoad ffn_load(ServerRank rank) const {
    for (const auto& member : members_) {
      if (member->role == Role::kFfn && member->rank == rank) {
        return member->handler->heartbeat().ffn_load.value_or(FfnLoad{});
      }
    }
    return {};
  }

  const AttentionMeter& meter(ServerRank rank) const { return meters_[rank]; }
  double colocated_ffn_us() const { return colocated_ ? colocated_->compute_us() : 0.0; }

 private:
  bool is_colocated() const { return blueprint_.config().is_colocated(); }

  void make_engine() {
    coordinator::EngineOptions options;
    options.scheduler = blueprint_.scheduler_options();
    options.contract = blueprint_.contract();
    options.placement_version = blueprint_.placement().version;
    options.heartbeat_timeout = std::chrono::milliseconds(0);  // members die with the process
    options.stall_timeout = std::chrono::milliseconds(0);
    engine_ = std::make_unique<coordinator::Engine>(options);
    if (options_.grpc) {
      control_ = std::make_unique<control_plane::ControlServer>("127.0.0.1:0", *engine_);
    }
  }

  void add_member(Role role, ServerRank rank, const ClusterWeights& weights) {
    auto member = std::make_unique<Participant>();
    member->role = role;
    member->rank = rank;
    incarnations_.push_back(control_plane::draw_incarnation());
    if (blueprint_.config().transport.kind == config::TransportKind::kShm && !is_colocated()) {
      transport::EndpointOptions endpoint;
      endpoint.role = role;
      endpoint.rank = rank;
      endpoint.incarnation = incarnations_.back();
      endpoint.shape = blueprint_.window_shape();
      endpoint.wait_policy = blueprint_.wait_policy();
      member->endpoint = std::make_unique<transport::ShmEndpoint>(endpoint);
    }
    if (role == Role::kAttention) {
      make_attention(*member, weights);
    } else {
      make_ffn(*member, weights);
    }
    members_.push_back(std::move(member));
  }

  void make_attention(Participant& member, const ClusterWeights& weights) {
    if (blueprint_.config().on_gpus()) {
      make_gpu_attention(member, weights);
      return;
    }
    Connect<transport::AttentionPort> connect;
    auto options = blueprint_.attention_options(member.rank);
    if (is_colocated()) {
      colocated_ = std::make_unique<ColocatedFfn>(blueprint_, weights.ffn.at(0));
      options = colocated_->share_workers(std::move(options));
      connect = [this](const control_plane::Topology& topology, const std::stop_token& /*stop*/)
          -> Result<std::shared_ptr<transport::AttentionPort>> {
        return colocated_->make_port(topology.epoch, *exchange_.fabric(topology.epoch));
      };
    } else if (member.endpoint) {
      connect = shm_attention_connect(*member.endpoint);
    } else {
      connect = [this, rank = member.rank](const control_plane::Topology& topology,
                                           const std::stop_token& /*stop*/)
          -> Result<std::shared_ptr<transport::AttentionPort>> {
        return exchange_.fabric(topology.epoch)->attention_port(rank);
      };
    }
    member.handler = std::make_unique<AttentionMember>(
        std::move(connect), options, blueprint_.spec(), weights.attention,
        [this, &member](LaneResult result) { on_result(member, std::move(result)); },
        [this, &member](const Status& status) { on_failure(member, status); });
  }

  void make_gpu_attention(Participant& member, const ClusterWeights& weights) {
    const auto gpu = gpu_part(blueprint_.config(), Role::kAttention, member.rank);
    GpuColocatedExperts* experts = nullptr;
    if (is_colocated()) {
      gpu_colocated_.push_back(make_gpu_colocated_experts(blueprint_, member.rank,
                                                          weights.gpu_ffn.at(member.rank), gpu));
      experts = gpu_colocated_.back().get();
    }
    Connect<transport::DevicePort> connect =
        [this, rank = member.rank, experts](
            const control_plane::Topology& topology,
            const std::stop_token& /*stop*/) -> Result<std::shared_ptr<transport::DevicePort>> {
      const auto fabric = gpu_exchange_.fabric(topology.epoch);
      if (experts != nullptr) {
        experts->use_port(fabric->ffn_port(rank));
      }
      return fabric->attention_port(rank);
    };
    // The attention weights are there once, but count for each server, as they would in processes
    // of their own.
    const auto attention_bytes = weights.gpu_attention->num_bytes();
    const auto options =
        is_colocated()
            ? gpu_memory_->colocated_options(blueprint_, member.rank, attention_bytes,
                                             weights.gpu_ffn.at(member.rank)->num_bytes())
            : gpu_memory_->attention_options(blueprint_, member.rank, attention_bytes);
    member.num_pages = options.num_pages;
    member.handler = std::make_unique<GpuAttentionMember>(
        std::move(connect), options, blueprint_.spec(), weights.gpu_attention, gpu,
        [this, &member](LaneResult result) { on_result(member, std::move(result)); },
        [this, &member](const Status& status) { on_failure(member, status); }, experts);
  }

  void make_gpu_ffn(Participant& member, const ClusterWeights& weights) {
    Connect<transport::DevicePort> connect =
        [this, rank = member.rank](
            const control_plane::Topology& topology,
            const std::stop_token& /*stop*/) -> Result<std::shared_ptr<transport::DevicePort>> {
      return gpu_exchange_.fabric(topology.epoch)->ffn_port(rank);
    };
    const auto options =
        is_colocated() ? blueprint_.ffn_options(member.rank)
                       : gpu_memory_->ffn_options(blueprint_, member.rank,
                                                  weights.gpu_ffn.at(member.rank)->num_bytes());
    member.handler = std::make_unique<GpuFfnMember>(
        std::move(connect), options, blueprint_.spec(), weights.gpu_ffn.at(member.rank),
        gpu_part(blueprint_.config(), Role::kFfn, member.rank),
        [this, &member](const Status& status) { on_failure(member, status); });
  }

  void make_ffn(Participant& member, const ClusterWeights& weights) {
    const bool alone = blueprint_.config().ffn.servers == 1;
    if (is_colocated() && alone) {
      member.handler = std::make_unique<ColocatedMember>([this](FfnStepPlan plan) {
        if (colocated_) {  // on a GPU the attention server's plan says it all
          colocated_->submit_plan(std::move(plan));
        }
      });
      return;
    }
    if (blueprint_.config().on_gpus()) {
      make_gpu_ffn(member, weights);
      return;
    }
    Connect<transport::FfnPort> connect;
    if (member.endpoint) {
      connect = shm_ffn_connect(*member.endpoint);
    } else {
      connect =
          [this, rank = member.rank](
              const control_plane::Topology& topology,
              const std::stop_token& /*stop*/) -> Result<std::shared_ptr<transport::FfnPort>> {
        return exchange_.fabric(topology.epoch)->ffn_port(rank);
      };
    }
    member.handler = std::make_unique<FfnMember>(
        std::move(connect), blueprint_.ffn_options(member.rank), blueprint_.spec(),
        weights.ffn.at(member.rank),
        [this, &member](const Status& status) { on_failure(member, status); });
  }

  void join(Participant& member) {
    control_plane::Registration registration;
    registration.role = member.role;
    registration.rank = member.rank;
    registration.incarnation =
        incarnations_[static_cast<std::size_t>(member.rank) +
                      (member.role == Role::kFfn ? blueprint_.config().attention.servers : 0)];
    registration.contract = blueprint_.contract();
    registration.num_pages = member.num_pages;
    if (member.endpoint) {
      registration.data_plane_address = member.endpoint->address();
    }
    if (options_.grpc) {
      control_plane::ControlClientOptions client;
      client.coordinator_address = fmt::format("127.0.0.1:{}", control_->port());
      member.client =
          std::make_unique<control_plane::ControlClient>(client, registration, *member.handler);
      member.client_thread = std::thread([&member] { member.client->run(); });
      return;
    }
    member.link = std::make_shared<DirectLink>(*member.handler, *engine_);
    const auto session = engine_->member_registered(registration, member.link);
    if (!session) {
      throw std::runtime_error(session.status().message());
    }
    member.link->start(*session);
  }

  // gRPC clients send their own; here one thread speaks for all. The scheduler learns the FFN
  // servers' speed from it.
  void send_heartbeats(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any ticked;
    std::unique_lock lock(mutex);
    while (
        !ticked.wait_for(lock, stop, kHeartbeatInterval, [&] { return stop.stop_requested(); })) {
      for (const auto& member : members_) {
        engine_->heartbeat(member->link->session(), member->handler->heartbeat());
      }
    }
  }

  void on_result(Participant& member, LaneResult result) {
    auto& meter = meters_[member.rank];
    meter.compute_us.fetch_add(result.compute_us, std::memory_order_relaxed);
    meter.wait_us.fetch_add(result.wait_us, std::memory_order_relaxed);
    if (member.client) {
      member.client->send_result(std::move(result));
    } else {
      engine_->lane_result(member.link->session(), std::move(result));
    }
  }

  void on_failure(Participant& member, const Status& status) {
    if (member.client) {
      member.client->send_failure(status);
    } else {
      engine_->member_failed(member.link->session(), status.to_string());
    }
  }

  const Blueprint blueprint_;
  const LocalClusterOptions options_;
  FabricExchange<transport::InprocFabric> exchange_;
  FabricExchange<transport::InprocDeviceFabric> gpu_exchange_;
  std::array<AttentionMeter, kMaxServers> meters_;
  std::vector<std::uint64_t> incarnations_;
  std::optional<GpuMemory> gpu_memory_;  // while the servers are made
  std::unique_ptr<coordinator::Engine> engine_;
  std::unique_ptr<control_plane::ControlServer> control_;
  std::unique_ptr<ColocatedFfn> colocated_;
  std::vector<std::unique_ptr<GpuColocatedExperts>> gpu_colocated_;  // by rank
  std::vector<std::unique_ptr<Participant>> members_;
  std::jthread heartbeats_;
};

LocalCluster::LocalCluster(const Blueprint& blueprint, const ClusterWeights& weights,
                           const LocalClusterOptions& options)
    : impl_(std::make_unique<Impl>(blueprint, weights, options)) {}
LocalCluster::~LocalCluster() = default;

bool LocalCluster::wait_ready(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!impl_->engine().state().ready) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

EngineClient& LocalCluster::engine() { return impl_->engine(); }
double LocalCluster::metric(const std::string& name) const { return impl_->metric(name); }
FfnLoad LocalCluster::ffn_load(ServerRank rank) const { return impl_->ffn_load(rank); }
double LocalCluster::colocated_ffn_us() const { return impl_->colocated_ffn_us(); }
double LocalCluster::attention_compute_us(ServerRank rank) const {
  return impl_->meter(rank).compute_us.load(std::memory_order_relaxed);
}
double LocalCluster::attention_wait_us(ServerRank rank) const {
  return impl_->meter(rank).wait_us.load(std::memory_order_relaxed);
}

}  // namespace fastfd::cluster
