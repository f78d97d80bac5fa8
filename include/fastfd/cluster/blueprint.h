#pragma once

#include <chrono>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/config/cluster_config.h"
#include "fastfd/control_plane/messages.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/model/model.h"
#include "fastfd/scheduler/scheduler.h"
#include "fastfd/transport/port.h"

namespace fastfd::cluster {

/// Throws config::ConfigError if a pool's device can't be had in this build or on this machine.
void require_devices(const config::ClusterConfig& config);

/// Throws config::ConfigError if servers that are processes can't meet over this transport with
/// these devices: GPUs write into each other's memory (cuda_ipc), CPUs into shared memory.
void require_process_transport(const config::ClusterConfig& config);

/// Everything the roles derive from one cluster file and one model: the only place that does, so
/// that coordinator, attention and FFN servers can't disagree. Immutable.
class Blueprint {
 public:
  /// Reads the model's config files and tensor headers (dummy weights: config.json). Throws
  /// model::ModelError, or config::ConfigError where file, model and devices don't fit each other.
  explicit Blueprint(config::ClusterConfig config);

  const config::ClusterConfig& config() const { return config_; }
  const model::ModelSpec& spec() const { return spec_; }

  /// Tokens of prompt and output together: the file's limit, else the model's.
  std::uint32_t max_model_len() const;
  /// Each attention server finds out how many KV pages its GPU has room for (gpu_memory.h); until
  /// they have registered the number is 0 everywhere.
  bool pages_are_auto() const { return config_.on_gpus() && config_.attention.kv_cache.pages == 0; }

  scheduler::SchedulerOptions scheduler_options() const;
  transport::WindowShape window_shape() const;
  transport::WaitPolicy wait_policy() const;
  /// Each of the servers' computing threads, if all are on this host.
  bool has_a_core_per_thread() const;
  /// How long threads of a server wait for each other before they sleep: not at all where all
  /// servers' threads are more than the cores.
  std::chrono::microseconds worker_spin() const;
  attention_server::AttentionServerOptions attention_options(ServerRank rank) const;
  ffn_server::FfnServerOptions ffn_options(ServerRank rank) const;
  control_plane::PlacementSpec placement() const;
  control_plane::Contract contract() const;

  /// KV of one page over all layers, keys and values.
  std::size_t kv_page_bytes() const;
  /// Of one attention server: the state of all its slots.
  std::size_t recurrent_state_bytes() const;

  /// Memory arithmetic of one server of each role, for the log: KV cache, windows.
  std::string describe_attention_memory() const;
  std::string describe_ffn_memory() const;

 private:
  void refuse_fp8_on_cpu() const;
  void refuse_rows_of_another_dtype() const;
  void refuse_what_does_not_fit() const;
  void refuse_empty_slices() const;
  void refuse_what_gpus_lack() const;
  std::size_t kv_cache_bytes() const;  ///< of one attention server
  std::uint32_t num_slots() const;     ///< likewise
  bool uses_graphs() const;
  DType dispatch_dtype() const;

  config::ClusterConfig config_;
  model::ModelSpec spec_;
};

}  // namespace fastfd::cluster
