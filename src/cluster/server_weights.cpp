#include "cluster/server_weights.h"

#include "cluster/gpu_part.h"
#include "fastfd/core/logging.h"

namespace fastfd::cluster {
namespace {

double mib(std::size_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

void report_attention(const ServerProcess& process, std::size_t weights_bytes) {
  spdlog::info("loaded {:.1f} MiB of weights in {:.2f} s; {}", mib(weights_bytes),
               process.seconds_since_start(), process.blueprint().describe_attention_memory());
}

void report_ffn(const ServerProcess& process, const ExpertPlacement& placement,
                std::size_t weights_bytes) {
  const bool has_experts = process.blueprint().spec().num_experts != 0;
  spdlog::info("loaded {} of {} {} of {} layers, {:.1f} MiB, in {:.2f} s; {}",
               placement.experts_of(process.rank()).size(), placement.num_experts(),
               has_experts ? "experts" : "slices", process.blueprint().spec().num_layers,
               mib(weights_bytes), process.seconds_since_start(),
               process.blueprint().describe_ffn_memory());
}

}  // namespace

std::shared_ptr<const model::AttentionWeights> load_attention(const ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  auto weights = std::make_shared<const model::AttentionWeights>(
      model::load_attention_weights(blueprint.config().model.path, blueprint.spec()));
  report_attention(process, weights->num_bytes());
  return weights;
}

std::shared_ptr<const model::FfnWeights> load_ffn(const ServerProcess& process) {
  const Blueprint& blueprint = process.blueprint();
  const auto placement = blueprint.placement().make();
  auto weights = std::make_shared<const model::FfnWeights>(model::load_ffn_weights(
      blueprint.config().model.path, blueprint.spec(), placement, process.rank()));
  report_ffn(process, placement, weights->num_bytes());
  return weights;
}

std::shared_ptr<const model::DeviceAttentionWeights> upload_attention(
    const ServerProcess& process, const device::CudaDevice& device) {
  const Blueprint& blueprint = process.blueprint();
  auto weights = std::make_shared<const model::DeviceAttentionWeights>(
      model::upload_attention_weights(blueprint.config().model.path, blueprint.spec(), device));
  report_attention(process, weights->num_bytes());
  return weights;
}

std::shared_ptr<const model::DeviceFfnWeights> upload_ffn(const ServerProcess& process,
                                                          const device::CudaDevice& device) {
  const Blueprint& blueprint = process.blueprint();
  const auto placement = blueprint.placement().make();
  auto weights = std::make_shared<const model::DeviceFfnWeights>(model::upload_ffn_weights(
      blueprint.config().model.path, blueprint.spec(), placement, process.rank(), device));
  report_ffn(process, placement, weights->num_bytes());
  return weights;
}

device::GpuPart open_gpu(const ServerProcess& process, Role role) {
  auto gpu = gpu_part(process.blueprint().config(), role, process.rank());
  spdlog::info("on {}, kernels on {} of its SMs", gpu.device().to_string(), gpu.num_sms());
  return gpu;
}

}  // namespace fastfd::cluster
