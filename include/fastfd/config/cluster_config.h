#pragma once

/// The cluster file as frozen structs: validated once, never changed. Defaults are the values of a
/// file that does not name the key; a key that can be `auto` is `auto` in such a file.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "fastfd/core/dtype.h"
#include "fastfd/core/load_format.h"

namespace fastfd::config {

/// A cluster file that can't be used. what() names file, line, key and remedy.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct HostPort {
  std::string host;        ///< name or address, IPv6 without brackets
  std::uint16_t port = 0;  ///< 0: any free port (http, or control with `inproc`)
  /// "127.0.0.1:8000", "[::1]:8000"
  std::string to_string() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

/// What the servers of a pool compute on: `cpu`, `cuda:1` (all of them on that GPU), or `cuda:0-3`
/// (server r on GPU r mod 4 of the four).
struct DeviceChoice {
  bool is_cuda = false;
  std::uint32_t first_gpu = 0;
  std::uint32_t num_gpus = 1;
  std::uint32_t gpu_of(std::uint32_t rank) const { return first_gpu + rank % num_gpus; }
  std::string to_string() const;
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

/// A server's part of its GPU. Servers may share one; what they take of it sums to at most 1.
struct GpuShare {
  double sm_share = 1.0;         ///< of the SMs; 1 for all that share a GPU: no partition
  double memory_fraction = 0.9;  ///< `auto`: 0.9, divided among the servers of the GPU
  friend bool operator==(const GpuShare&, const GpuShare&) = default;
};

/// What of a chat answer is `reasoning_content`, in the names of vLLM's --reasoning-parser. The
/// tags are "<think>" and "</think>"; parsers differ in what an answer without "<think>" begins
/// with.
enum class ReasoningParser : std::uint8_t {
  kAuto,        ///< as openai_gptoss or qwen3 if vocabulary or template have what they need
  kNone,        ///< tags are text like any other
  kQwen3,       ///< content, unless the prompt's end has opened the tag
  kDeepSeekR1,  ///< reasoning, unless the prompt's end has closed the tag
  kMinimaxM2,   ///< the same
  kGptOss,      ///< messages in channel "analysis" of OpenAI's harmony format
};
const char* to_string(ReasoningParser parser);

struct ModelConfig {
  /// Hugging Face folder, relative to the working directory. A file may name a model id instead,
  /// "Qwen/Qwen3-30B-A3B", which loading it looks up in the local Hugging Face cache.
  std::filesystem::path path;
  /// What FFN servers hold experts in; everything else is bf16. "auto": on GPUs what the checkpoint
  /// has (FP8 experts as they are, others as bf16), on the CPU bf16. "none": bf16, FP8 checkpoints
  /// dequantised. "fp8", on GPUs: FP8, made at load of what the checkpoint has otherwise.
  std::string quantization = "auto";
  /// `auto`: bf16 on GPUs, which know nothing else, and where the CPU has the instructions.
  Precision precision = Precision::kBFloat16;
  /// Tokens, prompt + output. 0 is the model's own limit, which loading a cluster file fills in.
  std::uint32_t max_model_len = 0;
  std::string served_name;  ///< in /v1/models; a cluster file's default is the folder's name
  LoadFormat load_format = LoadFormat::kAuto;  ///< dummy: needs no checkpoint
  std::uint32_t num_layers = 0;  ///< the first so many only, to measure a large model's; 0: all
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct CoordinatorConfig {
  HostPort http{"127.0.0.1", 8000};
  HostPort control{"127.0.0.1", 7070};
  std::uint32_t max_queued_requests = 1024;  ///< beyond: 429
  friend bool operator==(const CoordinatorConfig&, const CoordinatorConfig&) = default;
};

struct KvCacheConfig {
  /// Of each attention server. 0 is `auto` on GPUs: what gpu_memory_fraction leaves beside weights,
  /// workspace and windows, found by each server at start-up. `auto` on the CPU: 2048.
  std::uint32_t pages = 2048;
  std::uint32_t page_size = 16;    ///< tokens, a power of two
  DType dtype = DType::kBFloat16;  ///< `auto`: float32 with precision float32, else bf16
  bool prefix_cache = true;
  friend bool operator==(const KvCacheConfig&, const KvCacheConfig&) = default;
};

struct AttentionConfig {
  std::uint32_t servers = 1;
  DeviceChoice device;
  GpuShare gpu;               ///< with device cuda
  std::uint32_t threads = 1;  ///< of each server
  KvCacheConfig kv_cache;
  friend bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

struct FfnConfig {
  std::uint32_t servers = 1;
  DeviceChoice device;
  GpuShare gpu;
  std::uint32_t threads = 1;
  std::uint32_t expert_replicas = 1;
  friend bool operator==(const FfnConfig&, const FfnConfig&) = default;
};

enum class TransportKind : std::uint8_t { kInproc, kShm, kCudaIpc, kNccl };
const char* to_string(TransportKind kind);

struct TransportConfig {
  TransportKind kind = TransportKind::kShm;  ///< `auto`: shm, or cuda_ipc on GPUs
  /// `auto`: 50 if the host has more cores than server threads, else 0.
  std::uint32_t spin_us = 50;
  DType combine_dtype = DType::kFloat32;  ///< float32 or bf16; `auto`: float32, or bf16 on GPUs
  /// bf16 or fp8 (e4m3 with scales) on GPUs; absent there is `auto`: as the experts' weights. On
  /// the CPU what the precision gives, and nothing else.
  std::optional<DType> dispatch_dtype;
  friend bool operator==(const TransportConfig&, const TransportConfig&) = default;
};

/// What `scheduler.loop` picks.
enum class SchedulerLoop : std::uint8_t {
  kOverlapped,  ///< plans run ahead of results
  kPlain,       ///< plan, run, commit, one step at a time: the loop the other must agree with
};
const char* to_string(SchedulerLoop loop);

struct SchedulerConfig {
  SchedulerLoop loop = SchedulerLoop::kOverlapped;
  std::uint32_t microbatches = 0;          ///< lanes 1..4; 0 is `auto`
  std::uint32_t plan_ahead = 2;            ///< 1..3; `auto`: 2, or 1 on GPUs
  std::uint32_t max_sequences = 64;        ///< running at once, whole cluster
  std::uint32_t max_batched_tokens = 512;  ///< rows of one step on one attention server
  std::uint32_t prefill_chunk = 256;       ///< most prompt tokens of one sequence in one step
  /// Lanes of decode rows alone are replayed from captured CUDA graphs. Means nothing on the CPU.
  bool graphs = true;
  friend bool operator==(const SchedulerConfig&, const SchedulerConfig&) = default;
};

struct FaultConfig {
  std::uint32_t heartbeat_ms = 500;
  std::uint32_t heartbeat_timeout_ms = 5000;  ///< silence after which a server is lost
  std::uint32_t stall_timeout_ms = 10000;
  std::uint32_t drain_timeout_ms = 3000;  ///< SIGTERM: running requests may finish so long
  friend bool operator==(const FaultConfig&, const FaultConfig&) = default;
};

/// Who computes which half of a layer.
enum class ClusterTopology : std::uint8_t {
  kDisaggregated,  ///< attention servers and FFN servers
  /// Every rank does both halves, the baseline of comparisons: as many attention as FFN servers,
  /// rank r of each in one process and on one GPU. Several ranks exchange tokens by expert
  /// parallelism; that needs GPUs.
  kColocated,
};
const char* to_string(ClusterTopology topology);

struct ClusterConfig {
  std::filesystem::path source;  ///< the file it came from; empty for `serve`
  ClusterTopology topology = ClusterTopology::kDisaggregated;
  ModelConfig model;
  CoordinatorConfig coordinator;
  AttentionConfig attention;
  FfnConfig ffn;
  TransportConfig transport;
  SchedulerConfig scheduler;
  FaultConfig faults;
  std::string log_level = "info";

  /// Both pools are on GPUs; else both are on the CPU.
  bool on_gpus() const { return attention.device.is_cuda; }
  bool is_colocated() const { return topology == ClusterTopology::kColocated; }
  /// Of all servers that compute at one time; the halves of a co-located rank share theirs.
  std::uint64_t num_computing_threads() const;
  /// Rows of one attention server in one lane that windows are sized for.
  std::uint32_t max_lane_rows() const { return scheduler.max_batched_tokens; }
  friend bool operator==(const ClusterConfig&, const ClusterConfig&) = default;
};

/// What `auto` values and thread limits depend on.
struct HostFacts {
  std::uint32_t num_cores = 1;     ///< that this process may run on
  bool has_bf16 = false;           ///< the CPU has bf16 dot instructions
  std::uint64_t memory_bytes = 0;  ///< of the host, or of the container's limit; 0: unknown
  static HostFacts detect();
};

/// Reads and validates a file. Throws ConfigError listing every problem found, one a line, as
/// "file:line: key: what is wrong; remedy", by ascending line.
ClusterConfig load_cluster_file(const std::filesystem::path& file,
                                const HostFacts& host = HostFacts::detect());

/// As load_cluster_file, from text; `source_name` stands in for the file name in errors.
ClusterConfig parse_cluster_text(const std::string& text, const std::string& source_name,
                                 const HostFacts& host = HostFacts::detect());

/// `fastfd serve MODEL`: a topology for this machine. `model` is a folder or a model id, as in a
/// file's model.path. Throws ConfigError.
ClusterConfig default_cluster(const std::filesystem::path& model,
                              const HostFacts& host = HostFacts::detect(),
                              LoadFormat load_format = LoadFormat::kAuto);

/// The same hardware without disaggregation: each rank has the SMs and the memory of both its
/// halves, and one rank alone has one lane. Throws ConfigError if the pools have not as many
/// servers each, on the same devices.
ClusterConfig as_colocated(ClusterConfig config);

/// The effective values as a cluster file that parses back to the same config.
std::string to_yaml(const ClusterConfig& config);

}  // namespace fastfd::config
