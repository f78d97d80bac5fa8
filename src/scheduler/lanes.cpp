#include "scheduler/lanes.h"

#include <algorithm>

namespace fastfd::scheduler {

void LaneTable::add(Sequence* sequence) {
  Lane& lane = lanes_[sequence->home_lane];
  sequence->row_index = static_cast<std::uint32_t>(lane.rows.size());
  lane.rows.push_back(sequence);
  lane.context += sequence->next_position();
  ++num_rows_;
}

void LaneTable::detach(Sequence* sequence) {
  Lane& lane = lanes_[sequence->home_lane];
  lane.rows[sequence->row_index] = lane.rows.back();
  lane.rows[sequence->row_index]->row_index = sequence->row_index;
  lane.rows.pop_back();
  lane.context -= sequence->next_position();
  --num_rows_;
}

void LaneTable::remove(Sequence* sequence) {
  detach(sequence);
  leave_at_once(sequence);
}

void LaneTable::leave_at_once(Sequence* sequence) {
  lanes_[sequence->home_lane].leaves.push_back(sequence->lease.slot);
  sequence->leave_pending = true;
}

void LaneTable::clear_leaves() {
  for (Lane& lane : lanes_) {
    lane.leaves.clear();
  }
}

void LaneTable::repartition(std::uint32_t num_lanes, const CostModel& cost) {
  std::vector<std::pair<double, Sequence*>> all;
  all.reserve(num_rows_);
  for (Lane& lane : lanes_) {
    for (Sequence* sequence : lane.rows) {
      const LaneWork work{1.0, static_cast<double>(sequence->next_position())};
      all.emplace_back(cost.marginal(work), sequence);
    }
    lane.rows.clear();
    lane.context = 0;
  }
  num_rows_ = 0;
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::array<double, kMaxLanes> time{};
  for (const auto& [row_time, sequence] : all) {
    const auto lightest = std::min_element(time.begin(), time.begin() + num_lanes);
    *lightest += row_time;
    sequence->home_lane = static_cast<LaneId>(lightest - time.begin());
    add(sequence);
  }
}

double LaneTable::imbalance(std::uint32_t num_lanes, const CostModel& cost) const {
  double longest = 0;
  double total = 0;
  std::size_t most = 0;
  std::size_t fewest = num_rows_;
  for (LaneId b = 0; b < num_lanes; ++b) {
    const double time = cost.marginal(work(b));
    longest = std::max(longest, time);
    total += time;
    most = std::max(most, lanes_[b].rows.size());
    fewest = std::min(fewest, lanes_[b].rows.size());
  }
  if (most <= fewest + 1 || total <= 0) {
    return 0;
  }
  return longest / (total / num_lanes) - 1.0;
}

}  // namespace fastfd::scheduler
