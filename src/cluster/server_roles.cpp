#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "cluster/endpoint_connect.h"
#include "cluster/gpu_memory.h"
#include "cluster/gpu_part.h"
#include "cluster/members.h"
#include "cluster/nccl_connect.h"
#include "cluster/server_process.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/core/logging.h"
#include "fastfd/model/device_weights.h"

namespace fastfd::cluster {
namespace {

double mib(std::size_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

void report_attention(const ServerProcess& process, std::size_t weights_bytes) {
  spdlog::info("loaded {:.1f} MiB of weights in {:.2f} s; {}", mib(weights_bytes),
               process.seconds_since_start(), process.blueprint().describe_attention_memory());
}

void report_ffn(const ServerProcess& process, const ExpertPlacement& placement,
                std::size_t weights_bytes) {
  spdlog::info("loaded {} of {} experts of {} layers, {:.1f} MiB, in {:.2f} s; {}",
               placement.experts_of(process.rank()).size(), placement.num_experts(),
               process.blueprint().spec().num_layers, mib(weights_bytes),
               process.seconds_since_start(), process.blueprint().describe_ffn_memory());
}

device::GpuPart open_gpu(const ServerProcess& process, Role role) {
  auto gpu = gpu_part(process.blueprint().config(), role, process.rank());
  spdlog::info("on {}, kernels on {} of its SMs", gpu.device().to_string(), gpu.num_sms());
  return gpu;
}

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
      ipc_ = std::make_unique<transport::DeviceEndpoint>(gpu.device(), process.endpoint_options());
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
  transport::ShmEndpoint endpoint(process.endpoint_options());
  auto weights = std::make_shared<const model::AttentionWeights>(
      model::load_attention_weights(blueprint.config().model.path, blueprint.spec()));
  report_attention(process, weights->num_bytes());
  AttentionMember member(shm_attention_connect(endpoint),
                         blueprint.attention_options(process.rank()), blueprint.spec(),
                         std::move(weights), process.result_sink(), process.failure_sink());
  return process.serve(member, endpoint.address());
}

int serve_ffn(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  transport::ShmEndpoint endpoint(process.endpoint_options());
  const auto placement = blueprint.placement().make();
  auto weights = std::make_shared<const model::FfnWeights>(model::load_ffn_weights(
      blueprint.config().model.path, blueprint.spec(), placement, process.rank()));
  report_ffn(process, placement, weights->num_bytes());
  FfnMember member(shm_ffn_connect(endpoint), blueprint.ffn_options(process.rank()),
                   blueprint.spec(), std::move(weights), process.failure_sink());
  return process.serve(member, endpoint.address());
}

// The GPU's forms. Windows and servers go before what they lie on, in the reverse order of their
// making; the driver's context goes with the process.

int serve_gpu_attention(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const auto gpu = open_gpu(process, Role::kAttention);
  GpuEndpoint endpoint(process, Role::kAttention, gpu);
  auto weights =
      std::make_shared<const model::DeviceAttentionWeights>(model::upload_attention_weights(
          blueprint.config().model.path, blueprint.spec(), gpu.device()));
  report_attention(process, weights->num_bytes());
  GpuMemory memory(gpu.device(), weights->num_bytes());
  const auto options = memory.attention_options(blueprint, process.rank(), weights->num_bytes());
  GpuAttentionMember member(endpoint.connect(), options, blueprint.spec(), std::move(weights), gpu,
                            process.result_sink(), process.failure_sink());
  return process.serve(member, endpoint.address(), options.num_pages);
}

int serve_gpu_ffn(ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const auto gpu = open_gpu(process, Role::kFfn);
  GpuEndpoint endpoint(process, Role::kFfn, gpu);
  const auto placement = blueprint.placement().make();
  auto weights = std::make_shared<const model::DeviceFfnWeights>(model::upload_ffn_weights(
      blueprint.config().model.path, blueprint.spec(), placement, process.rank(), gpu.device()));
  report_ffn(process, placement, weights->num_bytes());
  GpuMemory memory(gpu.device(), weights->num_bytes());
  const auto options = memory.ffn_options(blueprint, process.rank(), weights->num_bytes());
  GpuFfnMember member(endpoint.connect(), options, blueprint.spec(), std::move(weights), gpu,
                      process.failure_sink());
  return process.serve(member, endpoint.address());
}

using Serve = int (*)(ServerProcess&);

// What a role can fail with before it serves becomes one log line and exit status 1.
int run_server(const config::ClusterConfig& config, Role role, ServerRank rank,
               const config::DeviceChoice& device, Serve on_cpu, Serve on_gpu) {
  if (device.is_cuda) {
    // Read at the first CUDA call; no thread may run yet.
    device::set_cuda_environment(device::kQueuesOfOneServer);
  }
  init_logging(fmt::format("{} {}", to_string(role), rank), config.log_level);
  try {
    ServerProcess process(config, role, rank);
    return device.is_cuda ? on_gpu(process) : on_cpu(process);
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}

}  // namespace

int run_attention_server(const config::ClusterConfig& config, ServerRank rank) {
  return run_server(config, Role::kAttention, rank, config.attention.device, serve_attention,
                    serve_gpu_attention);
}

int run_ffn_server(const config::ClusterConfig& config, ServerRank rank) {
  return run_server(config, Role::kFfn, rank, config.ffn.device, serve_ffn, serve_gpu_ffn);
}

}  // namespace fastfd::cluster
