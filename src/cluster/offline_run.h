#pragma once

#include <cstdint>

#include "fastfd/cluster/local_cluster.h"
#include "fastfd/cluster/offline_bench.h"

namespace fastfd::cluster {

/// Share of the wall time that the servers of a pool computed or waited, mean over servers.
struct PoolShare {
  double compute = 0.0;
  double wait = 0.0;
};

/// One batch run to its end. Shares, layer times and the overlap are those of steady decode: from
/// the moment every sequence has its first token until the first one ends.
struct OfflineRun {
  std::uint64_t output_tokens = 0;
  double seconds = 0.0;              ///< from the first submit to the last token
  double tokens_per_s = 0.0;         ///< output tokens over `seconds`
  double decode_tokens_per_s = 0.0;  ///< steady decode only
  PoolShare attention;
  PoolShare ffn;
  double num_lanes = 0.0;          ///< mean over steps
  double layer_us = 0.0;           ///< wall time of a layer, all lanes
  double lane_attention_us = 0.0;  ///< T_a: one lane, one layer, slowest server unknown: mean
  double lane_ffn_us = 0.0;        ///< T_f
  double overlapped_share = 0.0;   ///< of steps with several lanes

  /// max(B T_a, B T_f, T_a + T_f + T_c), T_c both hops. Co-located: B (T_a + T_f).
  double predicted_layer_us(double hops_us, bool colocated) const;
};

/// Submits `options.batch` random prompts and waits until all have their output. Throws
/// std::runtime_error if one fails.
OfflineRun run_offline(LocalCluster& cluster, const Blueprint& blueprint,
                       const OfflineBenchOptions& options, std::uint32_t seed);

}  // namespace fastfd::cluster
