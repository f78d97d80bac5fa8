#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/core/step_plan.h"
#include "kernels/attention/op.h"
#include "kernels/sampling/op.h"

namespace fastfd::attention_server {

struct SequenceTableShape {
  std::uint32_t num_slots = 0;
  std::uint32_t num_pages = 0;
  std::uint32_t page_size = 0;
  std::uint32_t max_model_len = 0;
  std::uint32_t max_lane_rows = 0;
  /// The last sampled token of a slot stays on the GPU: decode rows list kNoToken.
  bool tokens_on_device = false;
  /// Sequences have state that pages don't hold (recurrent_state.h): every slot is opened empty.
  bool recurrent_state = false;
};

/// A sequence on this server. The scheduler decides what is in it and when it may be reused.
struct Slot {
  Generation generation = 0;
  bool open = false;
  std::uint32_t length = 0;       ///< tokens whose keys and values are written, or are in this step
  std::uint32_t num_pages = 0;    ///< used entries of the page table row
  std::uint32_t prompt_len = 0;   ///< of the client's prompt
  TokenId last_token = kNoToken;  ///< sampled, not fed yet
  SamplingParams sampling;
  kernels::TokenCounts counts;  ///< ascending token; only with penalties
};

/// Row of a lane whose logits are sampled.
struct SampleRow {
  std::uint32_t row = 0;  ///< of the batch
  SlotId slot = 0;
  Generation generation = 0;
  std::uint32_t position = 0;  ///< of the token to be sampled
  std::uint32_t prompt_len = 0;
};

/// An entry of a slot's page table that a plan has set.
struct PageUpdate {
  SlotId slot = 0;
  std::uint32_t index = 0;
  PageId page = 0;
};

/// What one lane computes in one step. Reused from step to step, so the hot path allocates nothing
/// once it has seen its largest batch.
struct LaneBatch {
  std::uint32_t num_rows = 0;
  std::vector<TokenId> tokens;                // [num_rows]
  std::vector<std::int32_t> positions;        // [num_rows]
  std::vector<kernels::AttentionSpan> spans;  // one a decode row or piece, ascending row
  std::vector<SlotId> span_slots;             // [spans.size()]
  std::vector<SampleRow> samples;             // ascending row
  std::vector<PageCopy> copies;               // before the first layer
  std::vector<PageUpdate> page_updates;       // in the order of a slot's table
  std::vector<SlotId> opened;                 // slots whose sampling state begins
};

/// Slots, page tables and the decode rows of each lane: the server's side of delta-coded plans.
/// Every plan is checked against it, so that a disagreement with the coordinator becomes an error
/// instead of another request's corrupted cache. Used by the loop thread only.
class SequenceTable {
 public:
  explicit SequenceTable(const SequenceTableShape& shape);

  /// Forgets all sequences.
  void reset();

  /// Applies the changes of one lane in one step and lists its rows: decode rows in list order,
  /// then pieces. kInternal if the plan does not fit what this server holds.
  Status build(const AttentionLanePlan& plan, LaneBatch& batch);

  /// Takes a sampled token; it is fed by the lane's next step.
  void set_sampled(const SampleRow& row, TokenId token);

  const Slot& slot(SlotId id) const { return slots_[id]; }

 private:
  Status replace_rows(const AttentionLanePlan& plan);
  Status remove_rows(const AttentionLanePlan& plan);
  Status open_slot(const SlotOpen& open, LaneBatch& batch);
  Status append_page(SlotId slot, PageId page, LaneBatch& batch);
  Status add_decode_rows(const AttentionLanePlan& plan, LaneBatch& batch);
  Status add_piece(const PrefillPiece& piece, LaneBatch& batch);
  Status check_slot(SlotId slot) const;
  void add_span(SlotId id, std::uint32_t first_row, std::uint32_t num_rows, LaneBatch& batch);

  SequenceTableShape shape_;
  std::uint32_t pages_per_slot_;
  std::vector<Slot> slots_;
  // [num_slots, pages_per_slot]: rows never move, because spans of lanes in flight point into them.
  std::vector<PageId> page_table_;
  std::vector<SlotId> decode_rows_[kMaxLanes];
  std::vector<SlotId> joining_;  // scratch of build()
};

}  // namespace fastfd::attention_server
