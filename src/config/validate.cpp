#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <tuple>

namespace fastfd::config {
namespace {

/// A check applies when none of the keys it reads has a problem of its own.
bool all_good(const Problems& problems, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (problems.has(key)) {
      return false;
    }
  }
  return true;
}

/// Two names that mean the same interface for bind().
bool hosts_overlap(const std::string& a, const std::string& b) {
  const auto is_any = [](const std::string& host) { return host == "0.0.0.0" || host == "::"; };
  const auto is_loopback = [](const std::string& host) {
    return host == "localhost" || host == "127.0.0.1";
  };
  return a == b || is_any(a) || is_any(b) || (is_loopback(a) && is_loopback(b));
}

void check_ports(const ClusterConfig& config, Problems& problems) {
  const auto& [http, control, unused] = config.coordinator;
  if (all_good(problems, {"coordinator.http", "coordinator.control"}) && http.port != 0 &&
      http.port == control.port && hosts_overlap(http.host, control.host)) {
    problems.add(
        "coordinator.control",
        fmt::format("port {} is coordinator.http's as well; give each its own, for example "
                    "\"{}:{}\"",
                    control.port, control.host, control.port == 65535 ? 7070 : control.port + 1));
  }
  if (all_good(problems, {"coordinator.control", "transport.kind"}) && control.port == 0 &&
      config.transport.kind != TransportKind::kInproc) {
    problems.add("coordinator.control",
                 "port 0 (any free port) can't be told to server processes in advance; give a "
                 "port, or use transport.kind: inproc");
  }
}

/// The windows between the pools are in the memory of one or of the other kind.
void check_devices(const ClusterConfig& config, Problems& problems) {
  const auto& [attention, ffn] = std::tie(config.attention.device, config.ffn.device);
  if (!all_good(problems, {"attention.device", "ffn.device"}) || attention.is_cuda == ffn.is_cuda) {
    return;
  }
  // The one on the CPU may have been left out of the file.
  const char* const on_gpu = attention.is_cuda ? "attention.device" : "ffn.device";
  const char* const on_cpu = attention.is_cuda ? "ffn.device" : "attention.device";
  problems.add(on_gpu,
               fmt::format("{} is a GPU, but {} is cpu; put both pools on GPUs, as in {}: "
                           "cuda:0, or both on the CPU",
                           (attention.is_cuda ? attention : ffn).to_string(), on_cpu, on_cpu));
}

/// Reports `what` under `key` if the file asks for it and the key has no other problem.
void refuse_if(bool is_asked, const char* key, const std::string& what, Problems& problems) {
  if (is_asked && !problems.has(key)) {
    problems.add(key, what);
  }
}

/// Number formats and transports that only CPU servers have.
void check_gpu_support(const ClusterConfig& config, Problems& problems) {
  refuse_if(config.model.precision == Precision::kFloat32, "model.precision",
            "float32 is for the CPU: activations of the GPU kernels are bf16; use auto or bf16",
            problems);
  refuse_if(config.attention.kv_cache.dtype == DType::kFloat32, "attention.kv_cache.dtype",
            "float32 is for the CPU: the GPU kernels cache bf16 or fp8; use auto, bf16 or fp8",
            problems);
  refuse_if(config.transport.dispatch_dtype == DType::kFloat32, "transport.dispatch_dtype",
            "float32 is for the CPU: the GPU kernels send bf16 or fp8; use auto, bf16 or fp8",
            problems);
  refuse_if(config.transport.kind == TransportKind::kShm, "transport.kind",
            "shm joins CPU servers, but the pools are on GPUs; use auto or cuda_ipc on one host, "
            "nccl across hosts",
            problems);
}

/// Number formats and transports that only GPU servers have.
void check_cpu_support(const ClusterConfig& config, Problems& problems) {
  const auto needs_gpus = [](const std::string& what, const char* instead) {
    return fmt::format(
        "{}, but the pools are on the CPU; use {}, or put both pools on GPUs, as in "
        "attention.device: cuda:0",
        what, instead);
  };
  const auto& transport = config.transport;
  refuse_if(config.model.quantization == "fp8", "model.quantization",
            needs_gpus("fp8 needs the GPU kernels", "auto or none"), problems);
  refuse_if(config.attention.kv_cache.dtype == DType::kFloat8E4M3, "attention.kv_cache.dtype",
            needs_gpus("fp8 needs the GPU kernels", "auto, bf16 or float32"), problems);
  refuse_if(transport.dispatch_dtype == DType::kFloat8E4M3, "transport.dispatch_dtype",
            needs_gpus("fp8 needs the GPU kernels", "auto"), problems);
  const DType sent = cpu_activations(config.model.precision);
  refuse_if(!problems.has("model.precision") && transport.dispatch_dtype != sent,
            "transport.dispatch_dtype",
            fmt::format("servers on the CPU send what model.precision = {} gives; use auto, or "
                        "change model.precision",
                        to_string(config.model.precision)),
            problems);
  refuse_if(transport.kind == TransportKind::kCudaIpc || transport.kind == TransportKind::kNccl,
            "transport.kind",
            needs_gpus(fmt::format("{} joins GPUs", to_string(transport.kind)), "auto or shm"),
            problems);
}

void check_pool_threads(const std::string& pool, std::uint32_t threads, const HostFacts& host,
                        Problems& problems) {
  const std::string key = pool + ".threads";
  if (!problems.has(key) && threads > host.num_cores) {
    problems.add(
        key, fmt::format("{} threads for one server, but this host has {} core{}; use at "
                         "most {}",
                         threads, host.num_cores, host.num_cores == 1 ? "" : "s", host.num_cores));
  }
}

void check_threads(const ClusterConfig& config, const HostFacts& host, Problems& problems) {
  check_pool_threads("attention", config.attention.threads, host, problems);
  check_pool_threads("ffn", config.ffn.threads, host, problems);
  if (!all_good(problems,
                {"attention.threads", "ffn.threads", "attention.servers", "ffn.servers"})) {
    return;
  }
  const std::uint64_t total = num_server_threads(config);
  const std::uint64_t most = std::uint64_t{host.num_cores} * kMostThreadsPerCore;
  if (total > most) {
    problems.add(
        config.attention.servers >= config.ffn.servers ? "attention.servers" : "ffn.servers",
        fmt::format("{} attention x {} threads + {} ffn x {} threads = {} server threads on {} "
                    "core{}; use at most {}",
                    config.attention.servers, config.attention.threads, config.ffn.servers,
                    config.ffn.threads, total, host.num_cores, host.num_cores == 1 ? "" : "s",
                    most));
  }
}

void check_experts(const ClusterConfig& config, const ModelLimits& model, Problems& problems) {
  const auto& ffn = config.ffn;
  if (all_good(problems, {"ffn.servers", "ffn.expert_replicas"}) &&
      ffn.expert_replicas > ffn.servers) {
    problems.add("ffn.expert_replicas",
                 fmt::format("{} copies of an expert need as many FFN servers, there {} {}; use at "
                             "most {} or raise ffn.servers",
                             ffn.expert_replicas, ffn.servers == 1 ? "is" : "are", ffn.servers,
                             ffn.servers));
  }
  if (!problems.has("ffn.servers") && model.num_experts && ffn.servers > *model.num_experts) {
    problems.add("ffn.servers",
                 fmt::format("{} servers for the model's {} experts leave some without one; use at "
                             "most {}",
                             ffn.servers, *model.num_experts, *model.num_experts));
  }
}

void check_kv_cache(const ClusterConfig& config, const ModelLimits& model, Problems& problems) {
  const auto& kv = config.attention.kv_cache;
  const std::uint32_t max_len = config.model.max_model_len;
  if (!problems.has("model.max_model_len") && model.max_positions &&
      max_len > *model.max_positions) {
    problems.add("model.max_model_len",
                 fmt::format("{} tokens, but the model was made for {} (max_position_embeddings in "
                             "config.json); use at most {}",
                             max_len, *model.max_positions, *model.max_positions));
  }
  if (!problems.has("attention.kv_cache.page_size") && !std::has_single_bit(kv.page_size)) {
    problems.add("attention.kv_cache.page_size",
                 fmt::format("{} is not a power of two; use {} or {}", kv.page_size,
                             std::bit_floor(kv.page_size), std::bit_ceil(kv.page_size)));
  }
  if (!all_good(problems, {"attention.kv_cache.pages", "attention.kv_cache.page_size",
                           "model.max_model_len"})) {
    return;
  }
  const std::uint64_t capacity = std::uint64_t{kv.pages} * kv.page_size;
  if (kv.pages != 0 && capacity < max_len) {
    problems.add("attention.kv_cache.pages",
                 fmt::format("{} pages x {} tokens = {} tokens hold no sequence of "
                             "model.max_model_len = {}; use at least {} pages or lower "
                             "model.max_model_len to {}",
                             kv.pages, kv.page_size, capacity, max_len,
                             (max_len + kv.page_size - 1) / kv.page_size, capacity));
  }
}

void check_scheduler(const ClusterConfig& config, Problems& problems) {
  const auto& scheduler = config.scheduler;
  if (all_good(problems, {"scheduler.prefill_chunk", "scheduler.max_batched_tokens"}) &&
      scheduler.prefill_chunk > scheduler.max_batched_tokens) {
    problems.add("scheduler.prefill_chunk",
                 fmt::format("a chunk of {} tokens does not fit in a step of max_batched_tokens = "
                             "{}; use at most {} or raise max_batched_tokens",
                             scheduler.prefill_chunk, scheduler.max_batched_tokens,
                             scheduler.max_batched_tokens));
  }
  // Placement may put every running sequence on one attention server, and each has a decode row.
  if (all_good(problems, {"scheduler.max_sequences", "scheduler.max_batched_tokens"}) &&
      scheduler.max_sequences > scheduler.max_batched_tokens) {
    problems.add("scheduler.max_batched_tokens",
                 fmt::format("{} rows of a step don't hold one decode row for each of "
                             "max_sequences = {}; use at least {} or lower max_sequences",
                             scheduler.max_batched_tokens, scheduler.max_sequences,
                             scheduler.max_sequences));
  }
}

void check_faults(const ClusterConfig& config, Problems& problems) {
  const auto& faults = config.faults;
  if (all_good(problems, {"faults.heartbeat_ms", "faults.heartbeat_timeout_ms"}) &&
      faults.heartbeat_timeout_ms < 2 * std::uint64_t{faults.heartbeat_ms}) {
    problems.add("faults.heartbeat_timeout_ms",
                 fmt::format("{} ms is less than two heartbeats of {} ms, one late message would "
                             "lose a server; use at least {}",
                             faults.heartbeat_timeout_ms, faults.heartbeat_ms,
                             2 * std::uint64_t{faults.heartbeat_ms}));
  }
}

std::uint32_t num_pool_servers_on_gpu(std::uint32_t num_servers, const DeviceChoice& device,
                                      std::uint32_t gpu) {
  std::uint32_t count = 0;
  for (std::uint32_t rank = 0; device.is_cuda && rank < num_servers; ++rank) {
    count += device.gpu_of(rank) == gpu ? 1 : 0;
  }
  return count;
}

/// What the servers of GPU `gpu` take of it together, by `part` of each.
void check_sum(const ClusterConfig& config, std::uint32_t gpu, const char* key,
               double GpuShare::*part, Problems& problems) {
  constexpr double kRounding = 1e-6;  // 0.9 / 3 thrice
  const auto& [attention, ffn] = std::tie(config.attention, config.ffn);
  const auto num_attention = num_pool_servers_on_gpu(attention.servers, attention.device, gpu);
  const auto num_ffn = num_pool_servers_on_gpu(ffn.servers, ffn.device, gpu);
  // Both halves of a co-located rank run on the same SMs.
  const bool counts_ffn = !(config.is_colocated() && part == &GpuShare::sm_share);
  const double sum =
      num_attention * attention.gpu.*part + (counts_ffn ? num_ffn * ffn.gpu.*part : 0.0);
  if (sum > 1.0 + kRounding) {
    problems.add(
        fmt::format("{}.{}", num_ffn != 0 && counts_ffn ? "ffn" : "attention", key),
        fmt::format("{} attention x {} + {} ffn x {} = {:.2f} of cuda:{}; let the servers of a GPU "
                    "sum to at most 1",
                    num_attention, attention.gpu.*part, num_ffn, ffn.gpu.*part, sum, gpu));
  }
}

void check_gpus(const ClusterConfig& config, Problems& problems) {
  if (!all_good(problems, {"attention.device", "attention.servers", "attention.sm_share",
                           "attention.gpu_memory_fraction", "ffn.device", "ffn.servers",
                           "ffn.sm_share", "ffn.gpu_memory_fraction"})) {
    return;
  }
  std::uint32_t end = 0;
  for (const auto* device : {&config.attention.device, &config.ffn.device}) {
    end = std::max(end, device->is_cuda ? device->first_gpu + device->num_gpus : 0);
  }
  for (std::uint32_t gpu = 0; gpu < end; ++gpu) {
    // Servers that all have every SM share the GPU without a partition.
    const bool has_attention =
        num_pool_servers_on_gpu(config.attention.servers, config.attention.device, gpu) != 0;
    const bool has_ffn = num_pool_servers_on_gpu(config.ffn.servers, config.ffn.device, gpu) != 0;
    if ((has_attention && config.attention.gpu.sm_share < 1.0) ||
        (has_ffn && config.ffn.gpu.sm_share < 1.0)) {
      check_sum(config, gpu, "sm_share", &GpuShare::sm_share, problems);
    }
    check_sum(config, gpu, "gpu_memory_fraction", &GpuShare::memory_fraction, problems);
    if (problems.has("ffn.sm_share") || problems.has("attention.sm_share") ||
        problems.has("ffn.gpu_memory_fraction") || problems.has("attention.gpu_memory_fraction")) {
      return;  // the other GPUs have the same fault
    }
  }
}

}  // namespace

void check_topology(const ClusterConfig& config, Problems& problems) {
  const auto& [attention, ffn] = std::tie(config.attention, config.ffn);
  if (!config.is_colocated() ||
      !all_good(problems, {"topology", "attention.servers", "ffn.servers", "attention.device",
                           "ffn.device", "attention.sm_share", "ffn.sm_share"})) {
    return;
  }
  if (attention.servers != ffn.servers) {
    problems.add(
        "topology",
        fmt::format("colocated: each rank is an attention and an FFN server, but there are "
                    "{} attention and {} FFN servers; give attention.servers and "
                    "ffn.servers the same number",
                    attention.servers, ffn.servers));
  } else if (attention.device != ffn.device) {
    problems.add("topology",
                 fmt::format("colocated: both halves of a rank are on one device, but "
                             "attention.device is {} and ffn.device {}; give them the same",
                             attention.device.to_string(), ffn.device.to_string()));
  } else if (!config.on_gpus() && attention.servers != 1) {
    problems.add(
        "topology",
        fmt::format("colocated: {} ranks exchange tokens by expert parallelism, which needs "
                    "GPUs; use one server of each pool, or device: cuda:0",
                    attention.servers));
  } else if (attention.gpu.sm_share != ffn.gpu.sm_share) {
    problems.add(
        "ffn.sm_share",
        fmt::format("{}, but attention.sm_share is {} and both halves of a co-located rank "
                    "run on the same SMs; remove the key",
                    ffn.gpu.sm_share, attention.gpu.sm_share));
  }
  refuse_if(config.transport.kind == TransportKind::kNccl, "transport.kind",
            "nccl does not join co-located ranks; use auto", problems);
}

DType cpu_activations(Precision precision) {
  return precision == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

std::uint32_t num_servers_on_gpu(const ClusterConfig& config, std::uint32_t gpu) {
  return num_pool_servers_on_gpu(config.attention.servers, config.attention.device, gpu) +
         num_pool_servers_on_gpu(config.ffn.servers, config.ffn.device, gpu);
}

std::uint64_t num_server_threads(const ClusterConfig& config) {
  return std::uint64_t{config.attention.servers} * config.attention.threads +
         std::uint64_t{config.ffn.servers} * config.ffn.threads;
}

void validate(const ClusterConfig& config, const HostFacts& host, const ModelLimits& model,
              Problems& problems) {
  check_devices(config, problems);
  if (all_good(problems, {"attention.device", "ffn.device"})) {
    if (config.on_gpus()) {
      check_gpu_support(config, problems);
    } else {
      check_cpu_support(config, problems);
    }
  }
  check_topology(config, problems);
  check_ports(config, problems);
  check_threads(config, host, problems);
  check_gpus(config, problems);
  check_experts(config, model, problems);
  check_kv_cache(config, model, problems);
  check_scheduler(config, problems);
  check_faults(config, problems);
}

}  // namespace fastfd::config
