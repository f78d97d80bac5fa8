#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "kernels/attention/op.h"

namespace fastfd::attention_server {

/// How many tokens each recurrent state has taken. A state exists at one position only and can't be
/// taken back, so a span that goes on anywhere else is an error, not another sequence's or a
/// retried step's corrupted answer.
class StatePositions {
 public:
  explicit StatePositions(std::size_t num_states);

  /// Nobody's state is worth anything.
  void reset();
  /// The state is at no position until `advance`. kInternal for a span that neither begins a
  /// sequence nor goes on where the state is; `slot` is for the message.
  Status take(std::size_t state, SlotId slot, const kernels::AttentionSpan& span);
  /// The state has taken the span's tokens.
  void advance(std::size_t state, const kernels::AttentionSpan& span);
  std::size_t num_states() const { return positions_.size(); }

 private:
  std::vector<std::uint32_t> positions_;
};

}  // namespace fastfd::attention_server
