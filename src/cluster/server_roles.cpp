#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "cluster/colocated_role.h"
#include "cluster/endpoint_connect.h"
#include "cluster/gpu_memory.h"
#include "cluster/members.h"
#include "cluster/nccl_connect.h"
#include "cluster/server_process.h"
#include "cluster/server_weights.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/core/logging.h"
#include "fastfd/model/device_weights.h"

namespace fastfd::cluster {
namespace {

// A GPU server's end of the configured transport.
class GpuEndpoint {
 public:
  GpuEndpoint(const ServerProcess& process, Role role, const device::GpuPart& gpu)
      : peer_role_(role == Role::kAttention ? Role::kFfn : Role::kAttention) {
    const Blueprint& blueprint = process.blueprint();
    if (blueprint.config().transport.kind == config::TransportKind::kNccl) {
      nccl_ = std::make_unique<transport::NcclEndpoint>(
          gpu.device(),
          nccl_endpoint_options(blueprint, role, process.rank(), process.incarnation()));
    } else {
      ipc_ =
          std::make_unique<transport::DeviceEndpoint>(gpu.device(), process.endpoint_options(role));
    }
  }

  std::string address() const { return nccl_ ? nccl_->address() : ipc_->address(); }
  Connect<transport::DevicePort> connect() {
    return nccl_ ? nccl_connect(*nccl_) : device_connect(*ipc_, peer_role_);
  }

 private:
  const Role peer_role_;
  std::unique_ptr<transport::DeviceEndpoint> ipc_;
  std::unique_ptr<transport::NcclEndpoint> nccl_;
};

int serve_attention(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  transport::ShmEndpoint endpoint(process.endpoint_options(Role::kAttention));
  AttentionMember member(shm_attention_connect(endpoint),
                         blueprint.attention_options(process.rank()), blueprint.spec(),
                         load_attention(process), process.result_sink(),
                         process.failure_sink(Role::kAttention));
  return process.serve(
      {.role = Role::kAttention, .member = &member, .data_plane_address = endpoint.address()});
}

int serve_ffn(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  transport::ShmEndpoint endpoint(process.endpoint_options(Role::kFfn));
  FfnMember member(shm_ffn_connect(endpoint), blueprint.ffn_options(process.rank()),
                   blueprint.spec(), load_ffn(process), process.failure_sink(Role::kFfn));
  return process.serve(
      {.role = Role::kFfn, .member = &member, .data_plane_address = endpoint.address()});
}

// The GPU's forms. Windows and servers go before what they lie on, in the reverse order of their
// making; the driver's context goes with the process.

int serve_gpu_attention(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const auto gpu = open_gpu(process, Role::kAttention);
  GpuEndpoint endpoint(process, Role::kAttention, gpu);
  auto weights = upload_attention(process, gpu.device());
  GpuMemory memory(gpu.device(), weights->num_bytes());
  const auto options = memory.attention_options(blueprint, process.rank(), weights->num_bytes());
  GpuAttentionMember member(endpoint.connect(), options, blueprint.spec(), std::move(weights), gpu,
                            process.result_sink(), process.failure_sink(Role::kAttention));
  return process.serve({.role = Role::kAttention,
                        .member = &member,
                        .data_plane_address = endpoint.address(),
                        .num_pages = options.num_pages});
}

int serve_gpu_ffn(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const auto gpu = open_gpu(process, Role::kFfn);
  GpuEndpoint endpoint(process, Role::kFfn, gpu);
  auto weights = upload_ffn(process, gpu.device());
  GpuMemory memory(gpu.device(), weights->num_bytes());
  const auto options = memory.ffn_options(blueprint, process.rank(), weights->num_bytes());
  GpuFfnMember member(endpoint.connect(), options, blueprint.spec(), std::move(weights), gpu,
                      process.failure_sink(Role::kFfn));
  return process.serve(
      {.role = Role::kFfn, .member = &member, .data_plane_address = endpoint.address()});
}

using Serve = int (*)(ServerProcess&);

// What a role can fail with before it serves becomes one log line and exit status 1.
int run_server(const config::ClusterConfig& config, const char* role, ServerRank rank,
               const config::DeviceChoice& device, Serve on_cpu, Serve on_gpu,
               std::uint32_t num_queues = device::kQueuesOfOneServer) {
  if (device.is_cuda) {
    device::set_cuda_environment(num_queues);  // read at the first CUDA call; no thread may run yet
  }
  init_logging(fmt::format("{} {}", role, rank), config.log_level);
  try {
    ServerProcess process(config, rank);
    return device.is_cuda ? on_gpu(process) : on_cpu(process);
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}

}  // namespace

int run_attention_server(const config::ClusterConfig& config, ServerRank rank) {
  return run_server(config, "attention", rank, config.attention.device, serve_attention,
                    serve_gpu_attention);
}

int run_ffn_server(const config::ClusterConfig& config, ServerRank rank) {
  return run_server(config, "ffn", rank, config.ffn.device, serve_ffn, serve_gpu_ffn);
}

int run_colocated_server(const config::ClusterConfig& config, ServerRank rank) {
  return run_server(config, "server", rank, config.attention.device, serve_colocated,
                    serve_gpu_colocated, 2 * device::kQueuesOfOneServer);
}

}  // namespace fastfd::cluster
