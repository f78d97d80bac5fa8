#pragma once

#include <cstdint>
#include <vector>

#include "attention_server/attention_rows.h"
#include "fastfd/attention_server/attention_server.h"
#include "fastfd/model/model.h"
#include "kernels/gemm/op.h"
#include "kernels/latent_attention/op.h"
#include "kernels/rope/op.h"

namespace fastfd::attention_server {

/// Layers of AttentionKind::kLatent on the CPU, with the pages of all of them. Scratch is shared,
/// because lanes take turns. Used by the loop thread only.
class LatentAttention {
 public:
  LatentAttention(const AttentionServerOptions& options, const model::ModelSpec& spec);

  /// rows.residual += output projection of attention over pages and rows.normed.
  Status run(const AttentionRows& rows, const model::LatentAttentionWeights& weights);

  /// A whole page, in all layers.
  void copy_page(PageId source, PageId target);

 private:
  Status project_queries(const AttentionRows& rows, const model::LatentAttentionWeights& weights);
  Status project_latents(const AttentionRows& rows, const model::LatentAttentionWeights& weights);
  Status attend(const AttentionRows& rows);
  Status project_values(const AttentionRows& rows, const model::LatentAttentionWeights& weights);
  /// Head by head: rows of `from` [num_rows, num_heads, from_dim] times the head's weights, to the
  /// first elements of `to` [num_rows, num_heads, to_dim].
  Status project_heads(const AttentionRows& rows,
                       const std::vector<kernels::PackedWeights>& weights, const float* from,
                       std::int64_t from_dim, float* to, std::int64_t to_dim);
  Status gemm(const AttentionRows& rows, const float* a, const kernels::PackedWeights& weights,
              float* c, bool accumulate = false);
  kernels::LatentPool pool(std::uint32_t index);

  AttentionServerOptions options_;
  model::LatentSpec spec_;
  model::ModelSpec model_;
  kernels::RopeTable rope_;
  std::size_t pool_bytes_;  // of one layer
  // Pages that were never used are not resident: the buffer is a fresh anonymous mapping.
  device::HostBuffer pages_;  // [num layers of the kind][pool_bytes_]

  std::vector<float> q_down_;               // [max_lane_rows, q_rank]
  std::vector<float> q_;                    // [max_lane_rows, num_heads * (nope + rope)]
  std::vector<float> kv_;                   // [max_lane_rows, kv_rank + rope]
  std::vector<float> latents_;              // [max_lane_rows, kv_rank + rope]
  std::vector<float> queries_;              // [max_lane_rows, num_heads * (kv_rank + rope)]
  std::vector<float> sums_;                 // [max_lane_rows, num_heads * kv_rank]
  std::vector<float> values_;               // [max_lane_rows, num_heads * value_dim]
  std::vector<kernels::GemmParams> heads_;  // [num_heads]
};

}  // namespace fastfd::attention_server
