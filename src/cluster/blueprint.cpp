#include "fastfd/cluster/blueprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cluster/gpu_limits.h"
#include "fastfd/device/cuda.h"
#include "fastfd/transport/nccl.h"
#include "fastfd/transport/window_shape.h"

namespace fastfd::cluster {
namespace {

std::optional<DType> expert_dtype(const config::ClusterConfig& config) {
  if (config.model.quantization == "fp8") {
    return DType::kFloat8E4M3;
  }
  if (config.model.quantization == "auto" && config.on_gpus()) {
    return std::nullopt;
  }
  return DType::kBFloat16;
}

model::LoadOptions load_options(const config::ClusterConfig& config) {
  return {.format = config.model.load_format,
          .num_layers = config.model.num_layers,
          .expert_dtype = expert_dtype(config)};
}

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Of one server: what it receives into, and with nccl what it sends from.
double windows_mib(const config::ClusterConfig& config, const transport::WindowShape& shape,
                   Role role) {
  const auto windows = transport::window_bytes(shape, config.attention.servers, config.ffn.servers);
  const bool is_attention = role == Role::kAttention;
  std::size_t bytes = is_attention ? windows.per_attention_server : windows.per_ffn_server;
  if (config.transport.kind == config::TransportKind::kNccl) {
    bytes += is_attention ? windows.dispatch_window * config.ffn.servers
                          : windows.combine_window * config.attention.servers;
  }
  return mib(bytes);
}

}  // namespace

void require_devices(const config::ClusterConfig& config) {
  const auto require = [&](const char* key, const config::DeviceChoice& device) {
    if (!device.is_cuda) {
      return;
    }
    if (const Status cuda = device::cuda_availability(); !cuda) {
      throw config::ConfigError(fmt::format("{}: {}: {}: {}", config.source.string(), key,
                                            device.to_string(), cuda.message()));
    }
  };
  require("attention.device", config.attention.device);
  require("ffn.device", config.ffn.device);
  if (config.transport.kind == config::TransportKind::kNccl) {
    if (const Status nccl = transport::nccl_availability(); !nccl) {
      throw config::ConfigError(
          fmt::format("{}: transport.kind: {}", config.source.string(), nccl.message()));
    }
  }
}

void require_process_transport(const config::ClusterConfig& config) {
  const bool is_cuda = config.attention.device.is_cuda;
  const bool is_gpu_transport = config.transport.kind == config::TransportKind::kCudaIpc ||
                                config.transport.kind == config::TransportKind::kNccl;
  if (is_cuda == config.ffn.device.is_cuda && is_cuda == is_gpu_transport &&
      config.transport.kind != config::TransportKind::kInproc) {
    return;
  }
  throw config::ConfigError(
      fmt::format("{}: transport.kind: {} does not join attention.device {} and ffn.device {}; use "
                  "shm with device cpu in both pools, or cuda_ipc or nccl with device cuda in "
                  "both",
                  config.source.string(), to_string(config.transport.kind),
                  config.attention.device.to_string(), config.ffn.device.to_string()));
}

Blueprint::Blueprint(config::ClusterConfig config)
    : config_(std::move(config)),
      spec_(model::load_model_spec(config_.model.path, load_options(config_))) {
  require_devices(config_);
  refuse_fp8_on_cpu();
  refuse_rows_of_another_dtype();
  if (config_.model.max_model_len > spec_.max_positions) {
    throw config::ConfigError(
        fmt::format("{}: model.max_model_len: {} is more than the {} positions the model was made "
                    "for; lower it",
                    config_.source.string(), config_.model.max_model_len, spec_.max_positions));
  }
  const std::uint64_t pool_tokens =
      std::uint64_t{config_.attention.kv_cache.pages} * config_.attention.kv_cache.page_size;
  if (!pages_are_auto() && pool_tokens < max_model_len()) {
    throw config::ConfigError(
        fmt::format("{}: attention.kv_cache.pages: {} pages of {} tokens hold {} tokens, less than "
                    "one sequence "
                    "of {}; raise pages or lower model.max_model_len",
                    config_.source.string(), config_.attention.kv_cache.pages,
                    config_.attention.kv_cache.page_size, pool_tokens, max_model_len()));
  }
  refuse_what_does_not_fit();
  refuse_empty_slices();
  refuse_what_gpus_lack();
  if (auto status = transport::validate(window_shape()); !status) {
    throw config::ConfigError(config_.source.string() + ": " + status.message());
  }
}

void Blueprint::refuse_fp8_on_cpu() const {
  if (spec_.expert_dtype == DType::kFloat8E4M3 &&
      !(config_.attention.device.is_cuda && config_.ffn.device.is_cuda)) {
    throw config::ConfigError(
        fmt::format("{}: model.quantization: fp8 needs both pools on GPUs; say device: cuda:0 for "
                    "attention and ffn, or quantization: auto",
                    config_.source.string()));
  }
}

// The experts' kernels read rows in the type of their weights.
void Blueprint::refuse_rows_of_another_dtype() const {
  if (config_.on_gpus() && dispatch_dtype() != spec_.expert_dtype) {
    throw config::ConfigError(fmt::format(
        "{}: transport.dispatch_dtype: {} rows can't be sent to experts in {}; use auto",
        config_.source.string(), to_string(dispatch_dtype()), to_string(spec_.expert_dtype)));
  }
}

void Blueprint::refuse_empty_slices() const {
  const bool has_dense = spec_.has_layer(model::FfnKind::kDense);
  if (has_dense && config_.ffn.servers > spec_.dense_intermediate_dim) {
    throw config::ConfigError(
        fmt::format("{}: ffn.servers: {} servers can't share the {} hidden units of the model's "
                    "dense layers; use at most {}",
                    config_.source.string(), config_.ffn.servers, spec_.dense_intermediate_dim,
                    spec_.dense_intermediate_dim));
  }
}

// Kernels that would compute something else must not start.
void Blueprint::refuse_what_gpus_lack() const {
  const std::string lacking = config_.on_gpus() ? what_gpus_lack(spec_, max_model_len()) : "";
  if (!lacking.empty()) {
    throw config::ConfigError(fmt::format(
        "{}: attention.device: {} of {} can't be computed on GPUs; use device: cpu in both pools",
        config_.source.string(), lacking, spec_.architecture));
  }
  const DType kv_dtype = config_.attention.kv_cache.dtype;
  if (config_.on_gpus() && spec_.num_layers_of(model::AttentionKind::kLatent) > 0 &&
      kv_dtype != DType::kBFloat16) {
    throw config::ConfigError(
        fmt::format("{}: attention.kv_cache.dtype: latent rows can't be kept in {} on GPUs; use "
                    "bf16",
                    config_.source.string(), to_string(kv_dtype)));
  }
}

// Pages become resident as they are first used, so a pool that is too large would end the servers
// in the middle of the day instead of at start-up.
void Blueprint::refuse_what_does_not_fit() const {
  if (config_.on_gpus()) {
    return;  // the GPU's memory is budgeted where it is
  }
  const std::uint64_t host_bytes = config::HostFacts::detect().memory_bytes;
  const auto servers = static_cast<double>(config_.attention.servers);
  const double states = static_cast<double>(recurrent_state_bytes()) * servers;
  if (host_bytes != 0 && states > static_cast<double>(host_bytes)) {
    throw config::ConfigError(
        fmt::format("{}: scheduler.max_sequences: {} servers x {:.1f} MiB of recurrent state ({} "
                    "slots) are more than the {:.1f} MiB of memory of this host; lower "
                    "scheduler.max_sequences",
                    config_.source.string(), config_.attention.servers,
                    mib(recurrent_state_bytes()), num_slots(), mib(host_bytes)));
  }
  const double pools = static_cast<double>(kv_cache_bytes()) * servers + states;
  if (host_bytes != 0 && pools > static_cast<double>(host_bytes)) {
    throw config::ConfigError(
        fmt::format("{}: attention.kv_cache.pages: {} servers x {:.1f} MiB of KV cache{} are more "
                    "than the {:.1f} MiB of memory of this host; lower attention.kv_cache.pages",
                    config_.source.string(), config_.attention.servers,
                    mib(kv_cache_bytes() + recurrent_state_bytes()),
                    spec_.has_recurrent_state() ? " and recurrent state" : "", mib(host_bytes)));
  }
}

std::size_t Blueprint::kv_page_bytes() const {
  const auto& kv = config_.attention.kv_cache;
  const std::size_t token_values =
      std::size_t{2} * spec_.num_layers_of(model::AttentionKind::kFull) * spec_.kv_dim() +
      std::size_t{spec_.num_layers_of(model::AttentionKind::kLatent)} * spec_.latent.row_dim();
  return token_values * kv.page_size * dtype_bytes(kv.dtype);
}

std::size_t Blueprint::kv_cache_bytes() const {
  return kv_page_bytes() * config_.attention.kv_cache.pages;
}

std::size_t Blueprint::recurrent_state_bytes() const {
  return spec_.recurrent_state_bytes() * num_slots();
}

std::uint32_t Blueprint::num_slots() const {
  return scheduler::Scheduler::slots_per_server(scheduler_options());
}

bool Blueprint::uses_graphs() const {
  // A graph would hold the epoch's communicators.
  return config_.on_gpus() && config_.scheduler.graphs &&
         config_.transport.kind != config::TransportKind::kNccl;
}

std::uint32_t Blueprint::max_model_len() const {
  return config_.model.max_model_len != 0 ? config_.model.max_model_len : spec_.max_positions;
}

scheduler::SchedulerOptions Blueprint::scheduler_options() const {
  const auto& scheduler = config_.scheduler;
  return {.num_attention_servers = config_.attention.servers,
          .pages_per_server = config_.attention.kv_cache.pages,
          .page_size = config_.attention.kv_cache.page_size,
          .max_sequences = scheduler.max_sequences,
          .max_batched_tokens = scheduler.max_batched_tokens,
          .prefill_chunk = scheduler.prefill_chunk,
          .max_model_len = max_model_len(),
          .max_queued_requests = config_.coordinator.max_queued_requests,
          .plan_ahead = scheduler.plan_ahead,
          .microbatches = scheduler.microbatches,
          .overlapped = scheduler.loop == config::SchedulerLoop::kOverlapped,
          .prefix_cache = config_.attention.kv_cache.prefix_cache,
          .recurrent_state = spec_.has_recurrent_state(),
          .use_graphs = uses_graphs(),
          .uniform_buckets = config_.is_colocated(),
          .placement_version = placement().version,
          .num_layers = spec_.num_layers};
}

DType Blueprint::dispatch_dtype() const {
  if (config_.on_gpus()) {
    return config_.transport.dispatch_dtype.value_or(spec_.expert_dtype);
  }
  // FFN servers round activations to bf16 anyway in bf16 precision: nothing is lost here.
  return config_.model.precision == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

transport::WindowShape Blueprint::window_shape() const {
  return {.max_lane_rows = config_.max_lane_rows(),
          .hidden_dim = spec_.hidden_dim,
          .max_routes_per_row = spec_.max_routes_per_row(),
          .num_layers = spec_.num_layers,
          .dispatch_dtype = dispatch_dtype(),
          .combine_dtype = config_.transport.combine_dtype};
}

transport::WaitPolicy Blueprint::wait_policy() const {
  return {.spin_us = config_.transport.spin_us};
}

bool Blueprint::has_a_core_per_thread() const {
  return config_.num_computing_threads() <= config::HostFacts::detect().num_cores;
}

std::chrono::microseconds Blueprint::worker_spin() const {
  // Operators of a layer follow each other within microseconds; a sleeper takes tens to wake.
  constexpr std::chrono::microseconds kSpin{50};
  return has_a_core_per_thread() ? kSpin : std::chrono::microseconds{0};
}

attention_server::AttentionServerOptions Blueprint::attention_options(ServerRank rank) const {
  const auto shape = window_shape();
  return {.rank = rank,
          .precision = config_.model.precision,
          .dispatch_dtype = shape.dispatch_dtype,
          .combine_dtype = shape.combine_dtype,
          .threads = config_.attention.threads,
          .worker_spin = worker_spin(),
          .fetches_while_waiting = has_a_core_per_thread(),
          .num_pages = config_.attention.kv_cache.pages,
          .page_size = config_.attention.kv_cache.page_size,
          .kv_dtype = config_.attention.kv_cache.dtype,
          .num_slots = num_slots(),
          .max_lane_rows = shape.max_lane_rows,
          .max_model_len = max_model_len(),
          .num_ffn_servers = config_.ffn.servers,
          .max_graph_rows = uses_graphs() ? config_.scheduler.max_sequences : 0};
}

ffn_server::FfnServerOptions Blueprint::ffn_options(ServerRank rank) const {
  const auto shape = window_shape();
  return {.rank = rank,
          .precision = config_.model.precision,
          .dispatch_dtype = shape.dispatch_dtype,
          .combine_dtype = shape.combine_dtype,
          .threads = config_.ffn.threads,
          .worker_spin = worker_spin(),
          .fetches_while_waiting = has_a_core_per_thread(),
          .max_lane_rows = shape.max_lane_rows,
          .num_attention_servers = config_.attention.servers,
          .max_graph_rows = uses_graphs() ? config_.scheduler.max_sequences : 0,
          .colocated_with = config_.is_colocated() ? std::optional(rank) : std::nullopt};
}

control_plane::PlacementSpec Blueprint::placement() const {
  return {.num_experts = spec_.num_placed_experts(config_.ffn.servers),
          .num_servers = config_.ffn.servers,
          .num_replicas = config_.ffn.expert_replicas,
          .version = 1};
}

control_plane::Contract Blueprint::contract() const {
  const auto shape = window_shape();
  const auto options = attention_options(0);
  control_plane::Contract contract;
  contract.model_fingerprint = spec_.fingerprint;
  contract.num_attention_servers = config_.attention.servers;
  contract.num_ffn_servers = config_.ffn.servers;
  contract.max_lane_rows = shape.max_lane_rows;
  contract.hidden_dim = shape.hidden_dim;
  contract.max_routes_per_row = shape.max_routes_per_row;
  contract.num_layers = shape.num_layers;
  contract.dispatch_dtype = shape.dispatch_dtype;
  contract.combine_dtype = shape.combine_dtype;
  contract.precision = config_.model.precision;
  contract.num_pages = options.num_pages;
  contract.page_size = options.page_size;
  contract.kv_dtype = options.kv_dtype;
  contract.num_slots = options.num_slots;
  contract.max_model_len = options.max_model_len;
  contract.num_experts = placement().num_experts;
  contract.expert_replicas = config_.ffn.expert_replicas;
  return contract;
}

std::string Blueprint::describe_attention_memory() const {
  const auto& kv = config_.attention.kv_cache;
  std::vector<std::string> layers;
  if (const auto num_full = spec_.num_layers_of(model::AttentionKind::kFull); num_full > 0) {
    layers.push_back(
        fmt::format("2 x {} layers x {} heads x {}", num_full, spec_.num_kv_heads, spec_.head_dim));
  }
  if (const auto num_latent = spec_.num_layers_of(model::AttentionKind::kLatent); num_latent > 0) {
    layers.push_back(fmt::format("{} layers x ({} latent + {} rotated)", num_latent,
                                 spec_.latent.kv_rank, spec_.latent.rope_dim));
  }
  const std::string states =
      spec_.has_recurrent_state()
          ? fmt::format("recurrent state up to {:.1f} MiB = {} slots x {:.2f} MiB; ",
                        mib(recurrent_state_bytes()), num_slots(),
                        mib(spec_.recurrent_state_bytes()))
          : "";
  return fmt::format(
      "KV cache {:.1f} MiB = {} pages x {} tokens x ({}) x {} bytes; {}windows up to {:.1f} MiB",
      mib(kv_cache_bytes()), kv.pages, kv.page_size, fmt::join(layers, " + "),
      dtype_bytes(kv.dtype), states, windows_mib(config_, window_shape(), Role::kAttention));
}

std::string Blueprint::describe_ffn_memory() const {
  return fmt::format("windows up to {:.1f} MiB from {} attention servers",
                     windows_mib(config_, window_shape(), Role::kFfn), config_.attention.servers);
}

}  // namespace fastfd::cluster
