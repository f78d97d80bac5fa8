#include "cluster/gpu_memory.h"

#include <fmt/format.h>

#include "fastfd/attention_server/gpu_attention_server.h"
#include "fastfd/core/logging.h"
#include "fastfd/ffn_server/gpu_ffn_server.h"
#include "fastfd/transport/window_shape.h"

namespace fastfd::cluster {
namespace {

/// `pages: auto` stops here, which only a tiny model reaches: beyond it the coordinator's books
/// cost more than a larger prefix cache is worth.
constexpr std::uint64_t kMostAutoPages = std::uint64_t{1} << 20;

/// What a server with `num_windows` receive windows spends on them: each takes whole allocation
/// units of the GPU, and those of an ended epoch go only when the next ones are there.
std::uint64_t windows_bytes(std::size_t window_bytes, std::uint64_t num_windows) {
  constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;
  constexpr std::uint64_t kEpochs = 2;
  return kEpochs * num_windows * ((window_bytes + kUnit - 1) / kUnit * kUnit);
}

device::DeviceMemory read_memory(const device::CudaDevice& device, std::uint64_t loaded_bytes) {
  auto memory = device.memory();
  if (!memory) {
    throw device::DeviceError(device.to_string() + ": " + memory.status().message());
  }
  memory->free_bytes += loaded_bytes;
  return *memory;
}

device::MemoryDemand attention_demand(const Blueprint& blueprint,
                                      const attention_server::AttentionServerOptions& options,
                                      std::uint64_t weights_bytes) {
  const auto& config = blueprint.config();
  const auto& kv = config.attention.kv_cache;
  const auto windows = transport::window_bytes(blueprint.window_shape(), config.attention.servers,
                                               config.ffn.servers);
  device::MemoryDemand demand;
  demand.fraction = config.attention.gpu.memory_fraction;
  demand.weights_bytes = weights_bytes;
  demand.workspace_bytes =
      attention_server::GpuAttentionServer::workspace_bytes(options, blueprint.spec());
  demand.windows_bytes = windows_bytes(windows.combine_window, config.ffn.servers);
  demand.states_bytes = blueprint.recurrent_state_bytes();
  demand.bytes_per_page = blueprint.kv_page_bytes();
  demand.min_pages = (blueprint.max_model_len() + kv.page_size - 1) / kv.page_size;
  demand.max_pages = kMostAutoPages;
  if (!blueprint.pages_are_auto()) {
    demand.min_pages = kv.pages;
    demand.max_pages = kv.pages;
  }
  return demand;
}

device::MemoryDemand ffn_demand(const Blueprint& blueprint,
                                const ffn_server::FfnServerOptions& options,
                                std::uint64_t weights_bytes) {
  const auto& config = blueprint.config();
  const auto windows = transport::window_bytes(blueprint.window_shape(), config.attention.servers,
                                               config.ffn.servers);
  device::MemoryDemand demand;
  demand.fraction = config.ffn.gpu.memory_fraction;
  demand.weights_bytes = weights_bytes;
  demand.workspace_bytes = ffn_server::GpuFfnServer::workspace_bytes(options, blueprint.spec(),
                                                                     blueprint.placement().make());
  demand.windows_bytes = windows_bytes(windows.dispatch_window, config.attention.servers);
  return demand;
}

}  // namespace

GpuMemory::GpuMemory(const device::CudaDevice& device, std::uint64_t loaded_bytes)
    : device_(device), memory_(read_memory(device, loaded_bytes)) {}

device::MemoryBudget GpuMemory::take(const std::string& name, const device::MemoryDemand& demand) {
  const std::string who = name + " on " + device_.to_string();
  try {
    auto budget = device::plan_memory(memory_, demand);
    memory_.free_bytes -= budget.budget_bytes;
    spdlog::info("{}: {}", who, budget.arithmetic);
    return budget;
  } catch (const device::DeviceError& error) {
    throw device::DeviceError(fmt::format("{}: {}", who, error.what()));
  }
}

attention_server::AttentionServerOptions GpuMemory::attention_options(const Blueprint& blueprint,
                                                                      ServerRank rank,
                                                                      std::uint64_t weights_bytes) {
  auto options = blueprint.attention_options(rank);
  const auto budget = take(control_plane::member_name(Role::kAttention, rank),
                           attention_demand(blueprint, options, weights_bytes));
  options.num_pages = static_cast<std::uint32_t>(budget.num_pages);
  return options;
}

attention_server::AttentionServerOptions GpuMemory::colocated_options(const Blueprint& blueprint,
                                                                      ServerRank rank,
                                                                      std::uint64_t attention_bytes,
                                                                      std::uint64_t ffn_bytes) {
  auto options = blueprint.attention_options(rank);
  auto demand = attention_demand(blueprint, options, attention_bytes);
  const auto experts = ffn_demand(blueprint, blueprint.ffn_options(rank), ffn_bytes);
  demand.fraction += experts.fraction;
  demand.weights_bytes += experts.weights_bytes;
  demand.windows_bytes += experts.windows_bytes;
  // Experts between a lane's kernels, and of several ranks those for lanes of others alone.
  const std::uint32_t num_workers = blueprint.config().attention.servers > 1 ? 2 : 1;
  demand.workspace_bytes += num_workers * experts.workspace_bytes;
  const auto budget = take(fmt::format("co-located server {}", rank), demand);
  options.num_pages = static_cast<std::uint32_t>(budget.num_pages);
  return options;
}

ffn_server::FfnServerOptions GpuMemory::ffn_options(const Blueprint& blueprint, ServerRank rank,
                                                    std::uint64_t weights_bytes) {
  auto options = blueprint.ffn_options(rank);
  take(control_plane::member_name(Role::kFfn, rank), ffn_demand(blueprint, options, weights_bytes));
  return options;
}

}  // namespace fastfd::cluster
