#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "fastfd/config/cluster_config.h"

namespace fastfd::config {
namespace {

/// The spelling of cluster files, which is shorter than to_string(DType)'s.
const char* yaml_name(DType dtype) {
  return dtype == DType::kBFloat16     ? "bf16"
         : dtype == DType::kFloat8E4M3 ? "fp8"
                                       : to_string(dtype);
}

template <typename T>
void emit(YAML::Emitter& out, const char* key, const T& value) {
  out << YAML::Key << key << YAML::Value << value;
}

/// Quoted, so that no text is mistaken for a number, a map or `auto`.
void emit_text(YAML::Emitter& out, const char* key, const std::string& value) {
  out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << value;
}

/// For keys whose `auto` is decided while the cluster runs.
void emit_or_auto(YAML::Emitter& out, const char* key, std::uint32_t value) {
  if (value == 0) {
    emit(out, key, "auto");
  } else {
    emit(out, key, value);
  }
}

void begin(YAML::Emitter& out, const char* key) {
  out << YAML::Key << key << YAML::Value << YAML::BeginMap;
}

template <typename Pool>
void emit_device(YAML::Emitter& out, const Pool& pool) {
  emit_text(out, "device", pool.device.to_string());
  if (pool.device.is_cuda) {
    emit(out, "sm_share", fmt::format("{}", pool.gpu.sm_share));
    emit(out, "gpu_memory_fraction", fmt::format("{}", pool.gpu.memory_fraction));
  }
}

void emit_attention(YAML::Emitter& out, const AttentionConfig& attention) {
  begin(out, "attention");
  emit(out, "servers", attention.servers);
  emit_device(out, attention);
  emit(out, "threads", attention.threads);
  begin(out, "kv_cache");
  emit_or_auto(out, "pages", attention.kv_cache.pages);
  emit(out, "page_size", attention.kv_cache.page_size);
  emit(out, "dtype", yaml_name(attention.kv_cache.dtype));
  emit(out, "prefix_cache", attention.kv_cache.prefix_cache);
  out << YAML::EndMap << YAML::EndMap;
}

void emit_scheduler(YAML::Emitter& out, const SchedulerConfig& scheduler) {
  begin(out, "scheduler");
  emit(out, "loop", to_string(scheduler.loop));
  emit_or_auto(out, "microbatches", scheduler.microbatches);
  emit(out, "plan_ahead", scheduler.plan_ahead);
  emit(out, "max_sequences", scheduler.max_sequences);
  emit(out, "max_batched_tokens", scheduler.max_batched_tokens);
  emit(out, "prefill_chunk", scheduler.prefill_chunk);
  emit(out, "graphs", scheduler.graphs);
  out << YAML::EndMap;
}

}  // namespace

std::string to_yaml(const ClusterConfig& config) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  emit(out, "topology", to_string(config.topology));
  begin(out, "model");
  emit_text(out, "path", config.model.path.string());
  emit_text(out, "quantization", config.model.quantization);
  emit(out, "precision", to_string(config.model.precision));
  emit(out, "max_model_len", config.model.max_model_len);
  if (!config.model.served_name.empty()) {
    emit_text(out, "served_name", config.model.served_name);
  }
  emit(out, "load_format", to_string(config.model.load_format));
  emit(out, "num_layers", config.model.num_layers);
  emit(out, "reasoning_parser", to_string(config.model.reasoning_parser));
  out << YAML::EndMap;

  begin(out, "coordinator");
  emit_text(out, "http", config.coordinator.http.to_string());
  emit_text(out, "control", config.coordinator.control.to_string());
  emit(out, "max_queued_requests", config.coordinator.max_queued_requests);
  out << YAML::EndMap;

  emit_attention(out, config.attention);

  begin(out, "ffn");
  emit(out, "servers", config.ffn.servers);
  emit_device(out, config.ffn);
  emit(out, "threads", config.ffn.threads);
  emit(out, "expert_replicas", config.ffn.expert_replicas);
  out << YAML::EndMap;

  begin(out, "transport");
  emit(out, "kind", to_string(config.transport.kind));
  emit(out, "spin_us", config.transport.spin_us);
  emit(out, "combine_dtype", yaml_name(config.transport.combine_dtype));
  emit(out, "dispatch_dtype",
       config.transport.dispatch_dtype ? yaml_name(*config.transport.dispatch_dtype) : "auto");
  out << YAML::EndMap;

  emit_scheduler(out, config.scheduler);

  begin(out, "faults");
  emit(out, "heartbeat_ms", config.faults.heartbeat_ms);
  emit(out, "heartbeat_timeout_ms", config.faults.heartbeat_timeout_ms);
  emit(out, "stall_timeout_ms", config.faults.stall_timeout_ms);
  emit(out, "drain_timeout_ms", config.faults.drain_timeout_ms);
  out << YAML::EndMap;

  emit(out, "log_level", config.log_level);
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace fastfd::config
