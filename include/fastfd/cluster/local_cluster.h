#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "fastfd/cluster/blueprint.h"
#include "fastfd/core/engine_client.h"
#include "fastfd/core/step_plan.h"
#include "fastfd/model/device_weights.h"

namespace fastfd::cluster {

/// Weights of every role of a blueprint, loaded once and shared by clusters that fit them.
struct ClusterWeights {
  std::shared_ptr<const model::AttentionWeights> attention;
  std::vector<std::shared_ptr<const model::FfnWeights>> ffn;  ///< by FFN rank
  // Of a blueprint whose pools are on a GPU, instead of the above.
  std::shared_ptr<const model::DeviceAttentionWeights> gpu_attention;
  std::vector<std::shared_ptr<const model::DeviceFfnWeights>> gpu_ffn;  ///< by FFN rank
};
/// Where the blueprint's devices are: host memory, or one GPU (all servers must be on the same).
ClusterWeights load_cluster_weights(const Blueprint& blueprint);

struct LocalClusterOptions {
  /// Members join through gRPC on a loopback port instead of direct calls.
  bool grpc = false;
};

/// A whole cluster as threads of one process, without HTTP: for tests, sanitizers and
/// `fastfd bench offline`. The same loops, scheduler, windows and engine as separate processes; the
/// transport is the blueprint's (`inproc` or `shm`). Co-located on the CPU: attention and experts
/// take turns on one thread.
class LocalCluster {
 public:
  /// Starts all threads; ready once the epoch has begun, see wait_ready().
  LocalCluster(const Blueprint& blueprint, const ClusterWeights& weights,
               const LocalClusterOptions& options = {});
  ~LocalCluster();  ///< drains nothing: stops
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  /// False if the cluster does not serve within `timeout`.
  bool wait_ready(std::chrono::milliseconds timeout) const;
  EngineClient& engine();

  /// Value of a metric of the engine, summed over its labels; 0 if there is none of that name.
  double metric(const std::string& name) const;
  FfnLoad ffn_load(ServerRank rank) const;
  /// Co-located: microseconds that the one thread spent on experts.
  double colocated_ffn_us() const;
  /// Microseconds of each attention server's thread spent computing and waiting so far, as its lane
  /// results say.
  double attention_compute_us(ServerRank rank) const;
  double attention_wait_us(ServerRank rank) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::cluster
