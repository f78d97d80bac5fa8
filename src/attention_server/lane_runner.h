#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention_server/full_attention.h"
#include "attention_server/gated_delta_net.h"
#include "attention_server/latent_attention.h"
#include "attention_server/sequence_table.h"
#include "attention_server/shared_expert.h"
#include "fastfd/attention_server/attention_server.h"
#include "fastfd/device/cache_fetch.h"
#include "fastfd/device/cpu.h"
#include "kernels/dispatch/op.h"

namespace fastfd::attention_server {

/// The arithmetic of one lane on the CPU, between two hops: everything of a step that is
/// not waiting. Holds each lane's residual stream; scratch is shared, because lanes take turns.
/// Used by the loop thread only.
class LaneRunner {
 public:
  LaneRunner(const AttentionServerOptions& options, const model::ModelSpec& spec,
             std::shared_ptr<const model::AttentionWeights> weights);

  /// Data plane and placement of the epoch that starts.
  void begin_epoch(transport::AttentionPort* port, const ExpertPlacement* placement,
                   const std::atomic<bool>* abort);

  /// Gives slots that share a prompt their own copy of its partial page.
  void copy_pages(const LaneBatch& batch);
  /// The lane's residual stream starts.
  Status embed(LaneId lane, const LaneBatch& batch);

  /// Adds the FFN servers' answer of `hop` to the residual stream and normalises for the next
  /// layer. For hop.layer 0 of a step call normalize_first instead.
  Status combine(const transport::HopId& hop, const LaneBatch& batch);
  Status normalize_first(LaneId lane, const LaneBatch& batch);

  /// Attention of hop.layer, router, and M2N dispatch to every FFN server; then the experts that
  /// don't leave, while the routed ones are away.
  Status attend_and_dispatch(const transport::HopId& hop, const LaneBatch& batch);

  /// After the last layer's answer: final norm, LM head and sampling of the rows that want it.
  /// outputs [batch.samples.size()].
  Status sample(const transport::HopId& hop, const LaneBatch& batch, const SequenceTable& sequences,
                std::vector<kernels::SamplingOutput>& outputs);

  /// While nothing can be computed: brings the weights that are read after `hop` is answered into
  /// the cache, until `stop()`.
  template <typename Stop>
  void fetch_weights_after(const transport::HopId& hop, Stop stop) {
    const std::size_t next = hop.layer + 1;
    cache_fetch_.run(hop.step * weights_by_layer_.size() + next, weights_by_layer_[next], stop);
  }

 private:
  struct Lane {
    std::vector<float> residual;            // [max_lane_rows, hidden_dim]
    std::vector<std::int32_t> window_rows;  // [num_ffn_servers, num_rows] of the last dispatch
  };

  /// Where the rows of a layer go: the router's choice, or every slice of a dense FFN.
  struct Routes {
    std::uint32_t per_row = 0;
    const std::int32_t* experts = nullptr;  // [rows, per_row]
    const float* weights = nullptr;         // [rows, per_row]
    const ExpertPlacement* placement = nullptr;
  };

  Status attend(const transport::HopId& hop, const LaneBatch& batch);
  Status normalize_for_ffn(const transport::HopId& hop, const LaneBatch& batch);
  Status route(const transport::HopId& hop, const LaneBatch& batch, Routes& routes);
  Status dispatch(const transport::HopId& hop, const LaneBatch& batch, const Routes& routes);
  Status combine_rows(const transport::HopId& hop, std::span<const std::uint32_t> rows,
                      std::uint32_t num_rows, float* residual, const float* norm_weight,
                      float* normed);
  Status gemm(const float* a, std::int64_t num_rows, const kernels::PackedWeights& weights,
              float* c, const std::vector<float>& bias, Precision precision);

  AttentionServerOptions options_;
  model::ModelSpec spec_;
  std::shared_ptr<const model::AttentionWeights> weights_;
  std::shared_ptr<device::WorkerPool> workers_;
  device::CpuStream stream_;
  std::vector<device::MemoryRanges> weights_by_layer_;
  device::CacheFetch cache_fetch_;
  // Of the kinds that the model has.
  std::optional<FullAttention> full_attention_;
  std::optional<LatentAttention> latent_attention_;
  GatedDeltaNet gated_delta_net_;
  SharedExpert shared_expert_;

  transport::AttentionPort* port_ = nullptr;
  const ExpertPlacement* placement_ = nullptr;
  ExpertPlacement slices_;  // of dense FFNs
  const std::atomic<bool>* abort_ = nullptr;

  Lane lanes_[kMaxLanes];
  std::vector<float> normed_;                // [max_lane_rows, hidden_dim]
  std::vector<float> router_logits_;         // [max_lane_rows, num_experts]
  std::vector<std::int32_t> experts_;        // [max_lane_rows, top_k]
  std::vector<float> route_weights_;         // [max_lane_rows, top_k]
  std::vector<std::int32_t> slice_experts_;  // [max_lane_rows, num_ffn_servers]: 0, 1, ...
  std::vector<float> slice_weights_;         // [max_lane_rows, num_ffn_servers]: 1
  std::vector<const void*> partials_;        // [num_ffn_servers * rows]
  std::vector<float> sample_residual_;       // [max_lane_rows, hidden_dim]
  std::vector<float> logits_;                // [kSampleBlock, vocab_size]
  std::vector<std::uint32_t> sample_rows_;
  std::vector<kernels::SamplingRow> sampling_rows_;
  std::vector<kernels::DispatchTarget> targets_;  // [num_ffn_servers]
};

}  // namespace fastfd::attention_server
