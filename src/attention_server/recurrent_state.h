#pragma once

#include <cstdint>
#include <vector>

#include "attention_server/sequence_table.h"
#include "attention_server/state_positions.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"
#include "kernels/gated_delta_net/op.h"

namespace fastfd::attention_server {

/// What the gated-delta-net layers remember of each slot's sequence, beside the KV pages of the
/// other layers. Used by the loop thread only.
class RecurrentState {
 public:
  /// `num_layers`: of this kind.
  RecurrentState(std::uint32_t num_layers, std::uint32_t num_slots,
                 const kernels::GatedDeltaNetShape& shape);

  /// Nobody's state is worth anything: an epoch has ended in the middle of a step.
  void reset() { positions_.reset(); }

  /// The states of the batch's spans in one layer, as that layer's launch wants them. Until
  /// `advance` they are at no position. kInternal for a span that doesn't go on where its state is.
  Status take(std::uint32_t layer, const LaneBatch& batch,
              std::vector<kernels::GatedDeltaNetSpan>& spans);
  /// The launch has succeeded: the states have taken the spans' tokens.
  void advance(std::uint32_t layer, const LaneBatch& batch);

 private:
  std::size_t index_of(std::uint32_t layer, SlotId slot) const {
    return std::size_t{layer} * num_slots_ + slot;
  }

  kernels::GatedDeltaNetShape shape_;
  std::uint32_t num_slots_;
  StatePositions positions_;  // [num_layers, num_slots]
  std::size_t state_floats_;
  // States of slots that were never used are not resident: the buffer is a fresh anonymous mapping.
  device::HostBuffer buffer_;  // [num_layers][num_slots][convolution, recurrence]
};

}  // namespace fastfd::attention_server
