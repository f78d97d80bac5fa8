#include "attention_server/state_positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fastfd::attention_server {
namespace {

constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();

}  // namespace

StatePositions::StatePositions(std::size_t num_states) : positions_(num_states, kNowhere) {}

void StatePositions::reset() { std::fill(positions_.begin(), positions_.end(), kNowhere); }

Status StatePositions::take(std::size_t state, SlotId slot, const kernels::AttentionSpan& span) {
  const std::uint32_t at = positions_[state];
  if (span.start_position != 0 && at != span.start_position) {
    return {StatusCode::kInternal,
            fmt::format("the recurrent state of slot {} {}, a step would go on at {}", slot,
                        at == kNowhere ? "holds nothing" : fmt::format("is at position {}", at),
                        span.start_position)};
  }
  positions_[state] = kNowhere;
  return Status::ok();
}

void StatePositions::advance(std::size_t state, const kernels::AttentionSpan& span) {
  positions_[state] = static_cast<std::uint32_t>(span.start_position + span.num_rows);
}

}  // namespace fastfd::attention_server
