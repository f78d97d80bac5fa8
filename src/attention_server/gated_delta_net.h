#pragma once

#include <vector>

#include "attention_server/attention_rows.h"
#include "attention_server/recurrent_state.h"
#include "fastfd/attention_server/attention_server.h"
#include "fastfd/model/model.h"

namespace fastfd::attention_server {

/// Layers of AttentionKind::kGatedDeltaNet on the CPU, with the recurrent states of all of them.
/// Scratch is shared, because lanes take turns. Used by the loop thread only.
class GatedDeltaNet {
 public:
  GatedDeltaNet(const AttentionServerOptions& options, const model::ModelSpec& spec);

  /// An epoch begins: whatever the states hold, no sequence goes on from it.
  void forget_sequences() { states_.reset(); }

  /// rows.residual += output projection of the layer over states and rows.normed. A state's spans
  /// must come in the order of their positions, layer by layer, as plans have it (step_plan.h).
  Status run(const AttentionRows& rows, const model::GatedDeltaNetWeights& weights);

 private:
  AttentionServerOptions options_;
  model::ModelSpec spec_;
  RecurrentState states_;
  std::vector<kernels::GatedDeltaNetSpan> spans_;
  std::vector<float> projected_;  // [max_lane_rows, row_dim]
  std::vector<float> out_;        // [max_lane_rows, value_dim]
};

}  // namespace fastfd::attention_server
