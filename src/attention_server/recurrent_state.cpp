#include "attention_server/recurrent_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fastfd::attention_server {
namespace {

constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();

}  // namespace

RecurrentState::RecurrentState(std::uint32_t num_layers, std::uint32_t num_slots,
                               const kernels::GatedDeltaNetShape& shape)
    : shape_(shape),
      num_slots_(num_slots),
      positions_(std::size_t{num_layers} * num_slots, kNowhere),
      state_floats_(static_cast<std::size_t>(shape.state_floats())),
      buffer_(positions_.size() * state_floats_ * sizeof(float)) {}

void RecurrentState::reset() { std::fill(positions_.begin(), positions_.end(), kNowhere); }

Status RecurrentState::take(std::uint32_t layer, const LaneBatch& batch,
                            std::vector<kernels::GatedDeltaNetSpan>& spans) {
  spans.clear();
  for (std::size_t i = 0; i < batch.spans.size(); ++i) {
    const kernels::AttentionSpan& span = batch.spans[i];
    const SlotId slot = batch.span_slots[i];
    std::uint32_t& at = position(layer, slot);
    if (span.start_position != 0 && at != span.start_position) {
      return {StatusCode::kInternal,
              fmt::format("the recurrent state of slot {} {}, a step would go on at {}", slot,
                          at == kNowhere ? "holds nothing" : fmt::format("is at position {}", at),
                          span.start_position)};
    }
    at = kNowhere;
    float* state = buffer_.as<float>() + (std::size_t{layer} * num_slots_ + slot) * state_floats_;
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
    const kernels::AttentionSpan& span = batch.spans[i];
    position(layer, batch.span_slots[i]) =
        static_cast<std::uint32_t>(span.start_position + span.num_rows);
  }
}

}  // namespace fastfd::attention_server
