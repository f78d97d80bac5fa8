#include "fastfd/config/cluster_config.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "config/model_folder.h"
#include "config/section.h"
#include "config/utf8.h"
#include "config/validate.h"
#include "fastfd/core/ids.h"

namespace fastfd::config {
namespace {

constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{1} << 20;
constexpr std::uint32_t kDefaultSpinUs = 50;
constexpr std::uint32_t kDefaultPages = 2048;  // on the CPU
constexpr std::uint32_t kMostMillis = 24U * 3600U * 1000U;

/// Given only with device cuda.
struct AutoGpuShare {
  std::optional<double> sm_share;
  std::optional<double> memory_fraction;
};

/// Keys whose default depends on other keys, the host or the model.
struct AutoValues {
  AutoGpuShare attention_gpu;
  AutoGpuShare ffn_gpu;
  std::optional<Precision> precision;
  std::optional<std::uint32_t> pages;
  std::optional<DType> kv_dtype;
  std::optional<TransportKind> transport;
  std::optional<std::uint32_t> spin_us;
  std::optional<DType> combine_dtype;
  std::optional<DType> dispatch_dtype;
  std::optional<std::uint32_t> microbatches;
  std::optional<std::uint32_t> plan_ahead;
};

void read_model(Section section, ModelConfig& model, AutoValues& autos) {
  std::string path;
  section.read("path", path);
  model.path = path;
  section.read_choice<std::string>("quantization", model.quantization,
                                   {{"auto", "auto"}, {"none", "none"}, {"fp8", "fp8"}},
                                   {{"fp8*", "is not supported"},
                                    {"int*", "is not supported"},
                                    {"awq", "is not supported"},
                                    {"gptq", "is not supported"},
                                    {"mxfp4", "is not supported"}});
  section.read_choice<std::optional<Precision>>(
      "precision", autos.precision,
      {{"auto", std::nullopt}, {"bf16", Precision::kBFloat16}, {"float32", Precision::kFloat32}});
  section.read("max_model_len", model.max_model_len, {0, 1U << 24});
  section.read("served_name", model.served_name);
  section.read_choice<LoadFormat>("load_format", model.load_format,
                                  {{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}});
  section.read("num_layers", model.num_layers, {0, 1024});
  section.read_choice<ReasoningParser>("reasoning_parser", model.reasoning_parser,
                                       {{"auto", ReasoningParser::kAuto},
                                        {"none", ReasoningParser::kNone},
                                        {"qwen3", ReasoningParser::kQwen3},
                                        {"deepseek_r1", ReasoningParser::kDeepSeekR1},
                                        {"minimax_m2", ReasoningParser::kMinimaxM2},
                                        {"openai_gptoss", ReasoningParser::kGptOss}});
  section.finish();
}

void read_coordinator(Section section, CoordinatorConfig& coordinator) {
  section.read("http", coordinator.http);
  section.read("control", coordinator.control);
  section.read("max_queued_requests", coordinator.max_queued_requests, {1, 1U << 20});
  section.finish();
}

/// servers, device and threads, which both pools have.
template <typename Pool>
void read_pool(Section& section, Pool& pool, AutoGpuShare& gpu) {
  section.read("servers", pool.servers, {1, kMaxServers});
  section.read("device", pool.device);
  section.read_or_auto("sm_share", gpu.sm_share, Fraction{});
  section.read_or_auto("gpu_memory_fraction", gpu.memory_fraction, Fraction{});
  section.read("threads", pool.threads, {1, 1024});
}

void read_attention(Section section, AttentionConfig& attention, AutoValues& autos) {
  read_pool(section, attention, autos.attention_gpu);
  Section kv = section.child("kv_cache");
  kv.read_or_auto("pages", autos.pages, {1, kMostPages});
  kv.read("page_size", attention.kv_cache.page_size, {1, 1024});
  kv.read_choice<std::optional<DType>>("dtype", autos.kv_dtype,
                                       {{"auto", std::nullopt},
                                        {"bf16", DType::kBFloat16},
                                        {"float32", DType::kFloat32},
                                        {"fp8", DType::kFloat8E4M3}},
                                       {{"fp8_e4m3", "is called fp8"},
                                        {"float8_e4m3", "is called fp8"},
                                        {"fp8*", "is not supported"},
                                        {"float8*", "is not supported"},
                                        {"fp16", "is not supported"},
                                        {"float16", "is not supported"}});
  kv.read("prefix_cache", attention.kv_cache.prefix_cache);
  kv.finish();
  section.finish();
}

void read_ffn(Section section, FfnConfig& ffn, AutoValues& autos) {
  read_pool(section, ffn, autos.ffn_gpu);
  section.read("expert_replicas", ffn.expert_replicas, {1, kMaxServers});
  section.finish();
}

void read_transport(Section section, AutoValues& autos) {
  section.read_choice<std::optional<TransportKind>>("kind", autos.transport,
                                                    {{"auto", std::nullopt},
                                                     {"inproc", TransportKind::kInproc},
                                                     {"shm", TransportKind::kShm},
                                                     {"cuda_ipc", TransportKind::kCudaIpc},
                                                     {"nccl", TransportKind::kNccl}},
                                                    {{"ucx", "is not in this build"}});
  section.read_or_auto("spin_us", autos.spin_us, {0, 1'000'000});
  section.read_choice<std::optional<DType>>(
      "combine_dtype", autos.combine_dtype,
      {{"auto", std::nullopt}, {"float32", DType::kFloat32}, {"bf16", DType::kBFloat16}});
  section.read_choice<std::optional<DType>>("dispatch_dtype", autos.dispatch_dtype,
                                            {{"auto", std::nullopt},
                                             {"bf16", DType::kBFloat16},
                                             {"fp8", DType::kFloat8E4M3},
                                             {"float32", DType::kFloat32}});
  section.finish();
}

void read_scheduler(Section section, SchedulerConfig& scheduler, AutoValues& autos) {
  section.read_choice<SchedulerLoop>(
      "loop", scheduler.loop,
      {{"overlapped", SchedulerLoop::kOverlapped}, {"plain", SchedulerLoop::kPlain}});
  section.read_or_auto("microbatches", autos.microbatches, {1, kMaxLanes});
  section.read_or_auto("plan_ahead", autos.plan_ahead, {1, 3});
  section.read("max_sequences", scheduler.max_sequences, {1, 1U << 16});
  section.read("max_batched_tokens", scheduler.max_batched_tokens, {1, 1U << 16});
  section.read("prefill_chunk", scheduler.prefill_chunk, {1, 1U << 16});
  section.read("graphs", scheduler.graphs);
  section.finish();
}

void read_faults(Section section, FaultConfig& faults) {
  section.read("heartbeat_ms", faults.heartbeat_ms, {10, kMostMillis});
  section.read("heartbeat_timeout_ms", faults.heartbeat_timeout_ms, {20, kMostMillis});
  section.read("stall_timeout_ms", faults.stall_timeout_ms, {100, kMostMillis});
  section.read("drain_timeout_ms", faults.drain_timeout_ms, {0, kMostMillis});
  section.finish();
}

ModelLimits check_model_folder(ModelConfig& model, Problems& problems) {
  if (model.path.empty()) {
    if (!problems.has("model.path")) {
      problems.add("model.path",
                   "is missing; name a Hugging Face model folder, as in `model: {path: "
                   "models/atlas-moe}`");
    }
    return {};
  }
  std::string problem;
  resolve_model(model, problem);
  const ModelLimits limits =
      problem.empty() ? read_model_limits(model.path, problem) : ModelLimits();
  if (!problem.empty()) {
    problems.add("model.path", problem);
  }
  if (model.max_model_len == 0 && limits.max_positions) {
    model.max_model_len = *limits.max_positions;
  }
  return limits;
}

/// Most servers of both pools on one GPU of `device`.
std::uint32_t most_servers_on_a_gpu(const ClusterConfig& config, const DeviceChoice& device) {
  std::uint32_t most = 1;
  for (std::uint32_t i = 0; device.is_cuda && i < device.num_gpus; ++i) {
    most = std::max(most, num_servers_on_gpu(config, device.first_gpu + i));
  }
  return most;
}

void resolve_gpu(const AutoGpuShare& given, const ClusterConfig& config, const DeviceChoice& device,
                 GpuShare& gpu) {
  constexpr double kMostMemory = 0.9;  // the rest is contexts, and what was not thought of
  gpu.sm_share = given.sm_share.value_or(1.0);
  gpu.memory_fraction =
      given.memory_fraction.value_or(kMostMemory / most_servers_on_a_gpu(config, device));
}

/// GPU keys of a pool on the CPU would do nothing, which their writer didn't mean.
void refuse_gpu_keys(const AutoGpuShare& given, const DeviceChoice& device, const std::string& pool,
                     Problems& problems) {
  if (device.is_cuda || problems.has(pool + ".device")) {
    return;
  }
  for (const auto& [value, key] : {std::pair{given.sm_share, ".sm_share"},
                                   std::pair{given.memory_fraction, ".gpu_memory_fraction"}}) {
    if (value) {
      problems.add(pool + key,
                   fmt::format("is a part of a GPU, but {0}.device is cpu; remove it, or say "
                               "{0}.device: cuda:0",
                               pool));
    }
  }
}

void resolve_auto(const AutoValues& autos, const HostFacts& host, ClusterConfig& config) {
  resolve_gpu(autos.attention_gpu, config, config.attention.device, config.attention.gpu);
  resolve_gpu(autos.ffn_gpu, config, config.ffn.device, config.ffn.gpu);
  if (config.is_colocated() && !autos.ffn_gpu.sm_share) {
    config.ffn.gpu.sm_share = config.attention.gpu.sm_share;
  }
  const bool on_gpus = config.on_gpus();
  config.model.precision = autos.precision.value_or(on_gpus || host.has_bf16 ? Precision::kBFloat16
                                                                             : Precision::kFloat32);
  const DType activations = on_gpus ? DType::kBFloat16 : cpu_activations(config.model.precision);
  config.attention.kv_cache.pages = autos.pages.value_or(on_gpus ? 0 : kDefaultPages);
  config.attention.kv_cache.dtype = autos.kv_dtype.value_or(activations);
  auto& transport = config.transport;
  transport.kind =
      autos.transport.value_or(on_gpus ? TransportKind::kCudaIpc : TransportKind::kShm);
  const bool has_spare_core = host.num_cores > num_server_threads(config);
  transport.spin_us = autos.spin_us.value_or(has_spare_core ? kDefaultSpinUs : 0);
  transport.combine_dtype =
      autos.combine_dtype.value_or(on_gpus ? DType::kBFloat16 : DType::kFloat32);
  transport.dispatch_dtype = autos.dispatch_dtype;
  if (!on_gpus && !transport.dispatch_dtype) {
    transport.dispatch_dtype = activations;
  }
  config.scheduler.microbatches = autos.microbatches.value_or(0);
  config.scheduler.plan_ahead = autos.plan_ahead.value_or(on_gpus ? 1 : 2);
}

/// Counts documents and remembers where the second begins.
class DocumentCounter final : public YAML::EventHandler {
 public:
  int num_documents() const { return num_documents_; }
  int last_line() const { return last_line_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++num_documents_;
    last_line_ = mark.line + 1;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int num_documents_ = 0;
  int last_line_ = 1;
};

/// Refuses what follows the first document. YAML::LoadAll is no help: on a stray comma yaml-cpp
/// 0.7 delivers empty documents without end.
void check_single_document(const std::string& text, Problems& problems) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentCounter counter;
  while (counter.num_documents() < 2 && parser.HandleNextDocument(counter)) {
  }
  if (counter.num_documents() > 1) {
    problems.add_at(counter.last_line(), "",
                    "the cluster ends before this line; remove what follows, or the stray comma "
                    "or `---`");
  }
}

/// The document of the text; texts that are no single document are thrown here, as nothing else
/// can be checked then.
YAML::Node parse_document(const std::string& text, Problems& problems) {
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(bad), '\n');
    problems.add_at(static_cast<int>(line), "", "not UTF-8 text; save the file as UTF-8");
  }
  problems.raise_if_any();
  YAML::Node document;
  try {
    document = YAML::Load(text);
    check_single_document(text, problems);
  } catch (const YAML::Exception& error) {
    const int line = error.mark.is_null() ? 1 : error.mark.line + 1;
    problems.add_at(line, "",
                    fmt::format("not valid YAML: {}; check indentation, quotes and brackets at or "
                                "before this line",
                                error.msg));
  }
  problems.raise_if_any();
  if (!document.IsDefined() || document.IsNull()) {
    problems.add("", "the file is empty; it needs at least `model: {path: ...}`");
  }
  problems.raise_if_any();
  return document;
}

}  // namespace

const char* to_string(TransportKind kind) {
  switch (kind) {
    case TransportKind::kInproc:
      return "inproc";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kCudaIpc:
      return "cuda_ipc";
    case TransportKind::kNccl:
      return "nccl";
  }
  return "unknown";
}

const char* to_string(ClusterTopology topology) {
  return topology == ClusterTopology::kColocated ? "colocated" : "disaggregated";
}

std::string DeviceChoice::to_string() const {
  if (!is_cuda) {
    return "cpu";
  }
  return num_gpus == 1 ? fmt::format("cuda:{}", first_gpu)
                       : fmt::format("cuda:{}-{}", first_gpu, first_gpu + num_gpus - 1);
}

const char* to_string(ReasoningParser parser) {
  switch (parser) {
    case ReasoningParser::kAuto:
      return "auto";
    case ReasoningParser::kNone:
      return "none";
    case ReasoningParser::kQwen3:
      return "qwen3";
    case ReasoningParser::kDeepSeekR1:
      return "deepseek_r1";
    case ReasoningParser::kMinimaxM2:
      return "minimax_m2";
    case ReasoningParser::kGptOss:
      return "openai_gptoss";
  }
  return "unknown";
}

const char* to_string(SchedulerLoop loop) {
  return loop == SchedulerLoop::kOverlapped ? "overlapped" : "plain";
}

ClusterConfig parse_cluster_text(const std::string& text, const std::string& source_name,
                                 const HostFacts& host) {
  Problems problems(source_name);
  Section root(parse_document(text, problems), "", &problems);
  ClusterConfig config;
  config.source = source_name;
  AutoValues autos;
  root.read_choice<ClusterTopology>("topology", config.topology,
                                    {{"disaggregated", ClusterTopology::kDisaggregated},
                                     {"colocated", ClusterTopology::kColocated}});
  read_model(root.child("model"), config.model, autos);
  read_coordinator(root.child("coordinator"), config.coordinator);
  read_attention(root.child("attention"), config.attention, autos);
  read_ffn(root.child("ffn"), config.ffn, autos);
  read_transport(root.child("transport"), autos);
  read_scheduler(root.child("scheduler"), config.scheduler, autos);
  read_faults(root.child("faults"), config.faults);
  root.read_choice<std::string>("log_level", config.log_level,
                                {{"trace", "trace"},
                                 {"debug", "debug"},
                                 {"info", "info"},
                                 {"warn", "warn"},
                                 {"error", "error"},
                                 {"off", "off"}});
  root.finish();
  const ModelLimits limits = check_model_folder(config.model, problems);
  refuse_gpu_keys(autos.attention_gpu, config.attention.device, "attention", problems);
  refuse_gpu_keys(autos.ffn_gpu, config.ffn.device, "ffn", problems);
  resolve_auto(autos, host, config);
  validate(config, host, limits, problems);
  problems.raise_if_any();
  return config;
}

std::uint64_t ClusterConfig::num_computing_threads() const {
  if (is_colocated()) {
    return std::uint64_t{attention.servers} * std::max(attention.threads, ffn.threads);
  }
  return std::uint64_t{attention.servers} * attention.threads +
         std::uint64_t{ffn.servers} * ffn.threads;
}

ClusterConfig as_colocated(ClusterConfig config) {
  if (config.is_colocated()) {
    return config;
  }
  config.topology = ClusterTopology::kColocated;
  const double sm_share = std::min(1.0, config.attention.gpu.sm_share + config.ffn.gpu.sm_share);
  config.attention.gpu.sm_share = sm_share;
  config.ffn.gpu.sm_share = sm_share;
  if (config.attention.servers == 1) {
    config.scheduler.microbatches = 1;  // there is no hop to hide; lanes only read weights again
  }
  Problems problems(config.source.string());
  check_topology(config, problems);
  problems.raise_if_any();
  return config;
}

ClusterConfig load_cluster_file(const std::filesystem::path& file, const HostFacts& host) {
  Problems problems(file.string());
  std::error_code error;
  // Looked at before it is opened: opening a FIFO waits for a writer, perhaps for ever.
  const bool is_file = std::filesystem::is_regular_file(file, error);
  const auto num_bytes = is_file ? std::filesystem::file_size(file, error) : 0;
  std::ifstream stream;
  if (is_file) {
    stream.open(file, std::ios::binary);
  }
  if (!is_file || !stream) {
    const bool exists = std::filesystem::exists(file, error);
    problems.add("", exists ? "can't be read as a file; check its type and permissions"
                            : "no such file; give the path of a cluster file, for example "
                              "configs/quickstart.yaml");
  } else if (num_bytes > kMostFileBytes) {
    problems.add("", fmt::format("{} bytes are too many for a cluster file; check that it is one",
                                 num_bytes));
  }
  problems.raise_if_any();
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return parse_cluster_text(text, file.string(), host);
}

}  // namespace fastfd::config
