#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/device/cpu.h"
#include "fastfd/model/model.h"
#include "kernels/expert_ffn/op.h"

namespace fastfd::attention_server {

/// The experts that every token visits, on the CPU of the attention server: they run while the
/// routed experts are away. Used by the loop thread only.
class SharedExpert {
 public:
  SharedExpert(const AttentionServerOptions& options, const model::ModelSpec& spec);

  /// residual += gate * expert(normed), both [num_rows, hidden_dim]; the gate is 1 or the sigmoid
  /// of a projection of normed.
  Status run(const model::SharedExpertWeights& weights, std::uint32_t num_rows, const float* normed,
             float* residual, const device::CpuStream& stream, const std::atomic<bool>* abort);

 private:
  Status weigh(const model::SharedExpertWeights& weights, std::uint32_t num_rows,
               const float* normed, const device::CpuStream& stream);

  AttentionServerOptions options_;
  std::uint32_t hidden_dim_;
  std::uint32_t intermediate_dim_;
  kernels::ExpertFfnScratch scratch_;
  // Every row has one route, to expert 0.
  std::vector<std::uint32_t> route_offsets_;  // [max_lane_rows + 1]
  std::vector<std::uint32_t> route_experts_;  // [max_lane_rows]
  std::vector<float> route_weights_;          // [max_lane_rows]
  std::vector<const void*> in_rows_;          // [max_lane_rows]
  std::vector<float> out_;                    // [max_lane_rows, hidden_dim]
  std::vector<void*> out_rows_;               // [max_lane_rows]
};

}  // namespace fastfd::attention_server
