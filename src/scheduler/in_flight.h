#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/step_plan.h"
#include "scheduler/cost_model.h"
#include "scheduler/sequence.h"

namespace fastfd::scheduler {

/// Part of a prompt that a step in flight computes. The sequence outlives it: its lease is busy.
struct PieceInFlight {
  Sequence* sequence = nullptr;
  LaneId lane = 0;
  std::uint32_t end_position = 0;
};

/// What one attention server does in one published step.
struct ServerStep {
  LaneMask planned = 0;  ///< lanes with rows
  LaneMask pending = 0;  ///< of these, not committed yet
  /// Lanes of this step, and of earlier steps, that must commit before lane b does, because lane b
  /// goes on with a sequence that they computed (a chunk cut over lanes, a row moved at a barrier).
  std::array<LaneMask, kMaxLanes> after_same_step{};
  std::array<LaneMask, kMaxLanes> after_earlier_steps{};
  std::array<LaneWork, kMaxLanes> work{};
  std::vector<PieceInFlight> pieces;
  bool overlaps = false;  ///< could begin before its last lane of the step before had finished
  float busy_us = 0.0F;   ///< sums over the lanes' results
  float wait_us = 0.0F;
};

struct StepInFlight {
  StepId step = 0;
  std::uint32_t num_pending = 0;    ///< (server, lane) pairs
  std::vector<ServerStep> servers;  ///< [num_attention_servers]
  bool could_overlap = false;
  bool did_overlap = true;  ///< no server that could overlap reported that it did not
};

/// Published steps from the oldest uncommitted one on, and the one place that knows what has
/// committed (PROTOCOL 1). Results of one lane of one server come in step order, all else in any.
class InFlight {
 public:
  explicit InFlight(std::uint32_t num_servers) : num_servers_(num_servers) {}

  /// Steps that count against the credit: all since the oldest uncommitted one.
  std::uint32_t size() const { return static_cast<std::uint32_t>(steps_.size()); }
  bool empty() const { return steps_.empty(); }

  /// An empty record, its memory reused; publish() makes it the newest step.
  StepInFlight& prepare(StepId step);
  void publish();
  const StepInFlight* newest() const { return steps_.empty() ? nullptr : &steps_.back(); }

  /// nullptr if that lane of that step is not (any more) awaited.
  StepInFlight* awaiting(const LaneResult& result);
  /// True while a lane that must commit before this one has not.
  bool is_blocked(const StepInFlight& step, ServerRank server, LaneId lane) const;
  /// Marks the pair as committed. Returns true if the whole step is now.
  static bool commit(StepInFlight& step, ServerRank server, LaneId lane);
  /// Forgets committed steps at the front; references to steps become invalid.
  void pop_committed();

  bool has_committed(ServerRank server, const Ticket& ticket) const;

  void clear() { steps_.clear(); }

 private:
  const StepInFlight* find(StepId step) const;

  std::uint32_t num_servers_;
  std::deque<StepInFlight> steps_;  // consecutive step ids
  StepInFlight next_;
};

}  // namespace fastfd::scheduler
