#pragma once

/// What one lane of an attention server computes in one step, as its kernels read it: arrays in
/// device memory, sized for the largest lane, filled by the plan upload in front of the step's
/// kernels. How much of them counts is in LaneControl, so captured kernels serve every step.

#include <cstdint>

#include "fastfd/core/ids.h"

namespace fastfd::layout {

/// A row of activations.
struct alignas(16) LaneRow {
  TokenId token = kNoToken;  ///< fed by this row; kNoToken: the last one sampled for `slot`
  SlotId slot = 0;           ///< row of the page table
  std::uint32_t position = 0;
  std::uint32_t padding = 0;
};

/// Consecutive rows of one sequence: a prefill piece, or one decode row. Spans cover disjoint rows.
struct alignas(16) LaneSpan {
  std::uint32_t first_row = 0;
  std::uint32_t num_rows = 0;        ///< at least 1
  std::uint32_t start_position = 0;  ///< of the first row
  SlotId slot = 0;                   ///< row of the page table
};

/// A row whose logits are sampled.
struct alignas(16) LaneSample {
  std::uint32_t row = 0;
  SlotId slot = 0;                  ///< whose last token and token counts this sample changes
  std::uint32_t position = 0;       ///< of the token to be sampled
  std::uint32_t num_generated = 0;  ///< tokens generated before it (min_tokens)
};

static_assert(sizeof(LaneRow) == 16 && sizeof(LaneSpan) == 16 && sizeof(LaneSample) == 16);

}  // namespace fastfd::layout
