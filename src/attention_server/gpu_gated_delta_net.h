#pragma once

#include <cstdint>

#include "attention_server/gpu_attention_rows.h"
#include "attention_server/sequence_table.h"
#include "attention_server/state_positions.h"
#include "fastfd/model/device_weights.h"

namespace fastfd::attention_server {

/// Gated-delta-net layers on a GPU, with what they remember of each slot's sequence. Loop thread
/// only.
class GpuGatedDeltaNet {
 public:
  /// Allocates spec.recurrent_state_bytes() a slot.
  GpuGatedDeltaNet(const AttentionServerOptions& options, const model::ModelSpec& spec,
                   const device::CudaDevice& device);

  /// Nobody's state is worth anything: an epoch has ended in the middle of a step.
  void reset() { positions_.reset(); }
  /// Of a batch that is about to be enqueued, once for all layers. kInternal for a span that does
  /// not go on where its state will be by then.
  Status advance(const LaneBatch& batch);
  Status run(const GpuAttentionRows& rows, const model::DeviceGatedDeltaNet& weights) const;

 private:
  model::ModelSpec spec_;
  std::uint32_t num_slots_;
  std::uint32_t max_spans_;
  StatePositions positions_;  // [num_slots_]: all layers of a step are enqueued together
  // Of all layers of this kind: [layers][num_slots_][floats of a sequence].
  device::DeviceBuffer conv_states_, recurrent_states_;
};

}  // namespace fastfd::attention_server
