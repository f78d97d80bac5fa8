#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fastfd/core/ids.h"
#include "scheduler/cost_model.h"
#include "scheduler/sequence.h"

namespace fastfd::scheduler {

/// The decode rows of one attention server by lane: what the server will have once all published
/// plans have been applied, and the leaves that no plan has named yet.
class LaneTable {
 public:
  struct Lane {
    std::vector<Sequence*> rows;
    std::vector<SlotId> leaves;
    std::uint64_t context = 0;  ///< sum of the rows' next positions
  };

  const Lane& lane(LaneId lane) const { return lanes_[lane]; }
  std::uint32_t num_rows() const { return num_rows_; }
  LaneWork work(LaneId lane) const {
    return {static_cast<double>(lanes_[lane].rows.size()),
            static_cast<double>(lanes_[lane].context)};
  }

  /// Adds a decode row to its home lane; the plan before made it one on the server.
  void add(Sequence* sequence);
  /// The row leaves with the next plan.
  void remove(Sequence* sequence);
  /// As add() and remove() in one: the row was over before it began.
  void leave_at_once(Sequence* sequence);
  /// A plan has named the leaves.
  void clear_leaves();

  /// Every row moves on by one position. Calls `ended` for each row whose tokens are all planned
  /// now, after removing it.
  template <typename Ended>
  void advance(const Ended& ended);

  /// Deals all rows out again over `num_lanes` lanes, longest predicted time first, each to the
  /// lane with least so far. Only at a barrier: everything listed as leaving is simply absent.
  void repartition(std::uint32_t num_lanes, const CostModel& cost);

  /// Longest lane against the mean of all: 0.25 means a quarter longer. 0 while the lanes' rows
  /// differ by one at most, when moving rows seldom helps.
  double imbalance(std::uint32_t num_lanes, const CostModel& cost) const;

  void reset() { *this = LaneTable(); }

 private:
  void detach(Sequence* sequence);

  std::array<Lane, kMaxLanes> lanes_;
  std::uint32_t num_rows_ = 0;
};

template <typename Ended>
void LaneTable::advance(const Ended& ended) {
  for (Lane& lane : lanes_) {
    lane.context += lane.rows.size();
    for (std::size_t i = lane.rows.size(); i > 0; --i) {
      Sequence* sequence = lane.rows[i - 1];
      if (++sequence->planned_len == sequence->limit_len) {
        remove(sequence);  // the row swapped into its place has been advanced already
        ended(sequence);
      }
    }
  }
}

}  // namespace fastfd::scheduler
