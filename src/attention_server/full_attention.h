#pragma once

#include <cstdint>
#include <vector>

#include "attention_server/attention_rows.h"
#include "attention_server/kv_cache.h"
#include "fastfd/attention_server/attention_server.h"
#include "fastfd/model/model.h"
#include "kernels/rope/op.h"

namespace fastfd::attention_server {

/// Layers of AttentionKind::kFull on the CPU, with the pages of all of them. Scratch is shared,
/// because lanes take turns. Used by the loop thread only.
class FullAttention {
 public:
  FullAttention(const AttentionServerOptions& options, const model::ModelSpec& spec);

  /// rows.residual += output projection of attention over pages and rows.normed.
  Status run(const AttentionRows& rows, const model::FullAttentionWeights& weights);

  /// Keys and values of a whole page, in all layers.
  void copy_page(PageId source, PageId target) { kv_cache_.copy_page(source, target); }

 private:
  Status project(const AttentionRows& rows, const model::FullAttentionWeights& weights);
  Status apply_gate(const AttentionRows& rows, const model::FullAttentionWeights& weights);

  AttentionServerOptions options_;
  model::ModelSpec spec_;
  KvCache kv_cache_;
  kernels::RopeTable rope_;
  std::vector<float> qkv_;   // [max_lane_rows, (q + 2 kv heads) * head_dim]
  std::vector<float> out_;   // [max_lane_rows, q heads * head_dim]
  std::vector<float> gate_;  // [max_lane_rows, q heads * head_dim] or empty
};

}  // namespace fastfd::attention_server
