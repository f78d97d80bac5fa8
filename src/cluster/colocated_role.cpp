#include "cluster/colocated_role.h"

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>

#include "cluster/colocated.h"
#include "cluster/endpoint_connect.h"
#include "cluster/gpu_colocated.h"
#include "cluster/gpu_memory.h"
#include "cluster/members.h"
#include "cluster/server_weights.h"
#include "fastfd/transport/device_port.h"
#include "fastfd/transport/inproc.h"

namespace fastfd::cluster {
namespace {

/// Hands an epoch's port of the FFN half, which the windows of all ranks belong to, to the experts
/// between the attention half's kernels.
class PortExchange {
 public:
  void put(Epoch epoch, std::shared_ptr<transport::DevicePort> port) {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    port_ = std::move(port);
    changed_.notify_all();
  }
  /// Blocks until the epoch's port is there; nullptr if `abandoned` comes first.
  std::shared_ptr<transport::DevicePort> wait(Epoch epoch, std::stop_token abandoned) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, std::move(abandoned), [&] { return epoch_ == epoch && port_ != nullptr; });
    return epoch_ == epoch ? port_ : nullptr;
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Epoch epoch_ = 0;
  std::shared_ptr<transport::DevicePort> port_;
};

/// The attention half's data plane of an epoch, and through it the experts'.
using ConnectDevice = Connect<transport::DevicePort>;

ConnectDevice connect_alone(const device::CudaDevice& device, const Blueprint& blueprint,
                            GpuColocatedExperts& experts) {
  return
      [device, &blueprint, &experts](
          const control_plane::Topology& /*topology*/,
          const std::stop_token& /*abandoned*/) -> Result<std::shared_ptr<transport::DevicePort>> {
        const transport::InprocDeviceFabric fabric(device, blueprint.window_shape(), 1, 1);
        experts.use_port(fabric.ffn_port(0));
        return fabric.attention_port(0);
      };
}

ConnectDevice connect_ffn_half(transport::DeviceEndpoint& endpoint, PortExchange& exchange) {
  return [connect = device_connect(endpoint, Role::kAttention), &exchange](
             const control_plane::Topology& topology, const std::stop_token& abandoned) {
    auto port = connect(topology, abandoned);
    if (port) {
      exchange.put(topology.epoch, *port);
    }
    return port;
  };
}

ConnectDevice connect_attention_half(transport::DeviceEndpoint& endpoint, PortExchange& exchange,
                                     GpuColocatedExperts& experts) {
  return [connect = device_connect(endpoint, Role::kFfn), &exchange, &experts](
             const control_plane::Topology& topology,
             const std::stop_token& abandoned) -> Result<std::shared_ptr<transport::DevicePort>> {
    auto port = connect(topology, abandoned);
    if (!port) {
      return port;
    }
    auto ffn_port = exchange.wait(topology.epoch, abandoned);
    if (ffn_port == nullptr) {
      return Status(StatusCode::kAborted, "the epoch was abandoned before it began");
    }
    experts.use_port(std::move(ffn_port));
    return port;
  };
}

/// What both forms of a rank on a GPU need.
struct GpuRank {
  explicit GpuRank(const ServerProcess& process)
      : gpu(open_gpu(process, Role::kAttention)),
        attention(upload_attention(process, gpu.device())),
        ffn(upload_ffn(process, gpu.device())),
        options(GpuMemory(gpu.device(), attention->num_bytes() + ffn->num_bytes())
                    .colocated_options(process.blueprint(), process.rank(), attention->num_bytes(),
                                       ffn->num_bytes())),
        experts(make_gpu_colocated_experts(process.blueprint(), process.rank(), ffn, gpu)) {}

  device::GpuPart gpu;
  std::shared_ptr<const model::DeviceAttentionWeights> attention;
  std::shared_ptr<const model::DeviceFfnWeights> ffn;
  attention_server::AttentionServerOptions options;
  std::unique_ptr<GpuColocatedExperts> experts;
};

int serve_gpu_alone(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const GpuRank rank(process);
  GpuAttentionMember attention(connect_alone(rank.gpu.device(), blueprint, *rank.experts),
                               rank.options, blueprint.spec(), rank.attention, rank.gpu,
                               process.result_sink(), process.failure_sink(Role::kAttention),
                               rank.experts.get());
  ColocatedMember ffn([](const FfnStepPlan&) {});  // the attention half's plan says it all
  return process.serve(std::array{
      Seat{.role = Role::kAttention,
           .member = &attention,
           .data_plane_address = {},
           .num_pages = rank.options.num_pages},
      Seat{.role = Role::kFfn, .member = &ffn, .data_plane_address = {}, .num_pages = 0}});
}

}  // namespace

int serve_colocated(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  ColocatedFfn experts(blueprint, load_ffn(process));
  const auto connect = [&](const control_plane::Topology& topology,
                           const std::stop_token& /*abandoned*/)
      -> Result<std::shared_ptr<transport::AttentionPort>> {
    const transport::InprocFabric fabric(blueprint.window_shape(), 1, 1, blueprint.wait_policy(),
                                         topology.epoch);
    return experts.make_port(topology.epoch, fabric);
  };
  AttentionMember attention(
      connect, experts.share_workers(blueprint.attention_options(process.rank())), blueprint.spec(),
      load_attention(process), process.result_sink(), process.failure_sink(Role::kAttention));
  ColocatedMember ffn([&](FfnStepPlan plan) { experts.submit_plan(std::move(plan)); });
  return process.serve(std::array{
      Seat{
          .role = Role::kAttention, .member = &attention, .data_plane_address = {}, .num_pages = 0},
      Seat{.role = Role::kFfn, .member = &ffn, .data_plane_address = {}, .num_pages = 0}});
}

int serve_gpu_colocated(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  if (blueprint.config().attention.servers == 1) {
    return serve_gpu_alone(process);
  }
  const GpuRank rank(process);
  transport::DeviceEndpoint attention_end(rank.gpu.device(),
                                          process.endpoint_options(Role::kAttention));
  transport::DeviceEndpoint ffn_end(rank.gpu.device(), process.endpoint_options(Role::kFfn));
  PortExchange exchange;
  GpuFfnMember ffn(connect_ffn_half(ffn_end, exchange), blueprint.ffn_options(process.rank()),
                   blueprint.spec(), rank.ffn, rank.gpu, process.failure_sink(Role::kFfn));
  GpuAttentionMember attention(connect_attention_half(attention_end, exchange, *rank.experts),
                               rank.options, blueprint.spec(), rank.attention, rank.gpu,
                               process.result_sink(), process.failure_sink(Role::kAttention),
                               rank.experts.get());
  return process.serve(std::array{Seat{.role = Role::kAttention,
                                       .member = &attention,
                                       .data_plane_address = attention_end.address(),
                                       .num_pages = rank.options.num_pages},
                                  Seat{.role = Role::kFfn,
                                       .member = &ffn,
                                       .data_plane_address = ffn_end.address(),
                                       .num_pages = 0}});
}

}  // namespace fastfd::cluster
