#include "attention_server/recurrent_state.h"

namespace fastfd::attention_server {

RecurrentState::RecurrentState(std::uint32_t num_layers, std::uint32_t num_slots,
                               const kernels::GatedDeltaNetShape& shape)
    : shape_(shape),
      num_slots_(num_slots),
      positions_(std::size_t{num_layers} * num_slots),
      state_floats_(static_cast<std::size_t>(shape.state_floats())),
      buffer_(positions_.num_states() * state_floats_ * sizeof(float)) {}

Status RecurrentState::take(std::uint32_t layer, const LaneBatch& batch,
                            std::vector<kernels::GatedDeltaNetSpan>& spans) {
  spans.clear();
  for (std::size_t i = 0; i < batch.spans.size(); ++i) {
    const kernels::AttentionSpan& span = batch.spans[i];
    const std::size_t index = index_of(layer, batch.span_slots[i]);
    if (auto status = positions_.take(index, batch.span_slots[i], span); !status) {
      return status;
    }
    float* state = buffer_.as<float>() + index * state_floats_;
    spans.push_back({.first_row = span.first_row,
                     .num_rows = span.num_rows,
                     .begins = span.start_position == 0,
                     .conv_state = state,
                     .recurrent_state = state + shape_.conv_state_floats()});
  }
  return Status::ok();
}

void RecurrentState::advance(std::uint32_t layer, const LaneBatch& batch) {
  for (std::size_t i = 0; i < batch.spans.size(); ++i) {
    positions_.advance(index_of(layer, batch.span_slots[i]), batch.spans[i]);
  }
}

}  // namespace fastfd::attention_server
