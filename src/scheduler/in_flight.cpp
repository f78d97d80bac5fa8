#include "scheduler/in_flight.h"

#include <bit>
#include <utility>

namespace fastfd::scheduler {

StepInFlight& InFlight::prepare(StepId step) {
  next_.step = step;
  next_.num_pending = 0;
  next_.could_overlap = false;
  next_.did_overlap = true;
  next_.servers.resize(num_servers_);
  for (ServerStep& server : next_.servers) {
    auto pieces = std::move(server.pieces);
    pieces.clear();
    server = {};
    server.pieces = std::move(pieces);
  }
  return next_;
}

void InFlight::publish() {
  for (ServerStep& server : next_.servers) {
    server.pending = server.planned;
    next_.num_pending += static_cast<std::uint32_t>(std::popcount(server.planned));
    next_.could_overlap = next_.could_overlap || server.overlaps;
  }
  steps_.push_back(std::move(next_));
  next_ = {};
}

const StepInFlight* InFlight::find(StepId step) const {
  if (steps_.empty() || step < steps_.front().step || step > steps_.back().step) {
    return nullptr;
  }
  return &steps_[step - steps_.front().step];
}

StepInFlight* InFlight::awaiting(const LaneResult& result) {
  const StepInFlight* step = find(result.step);
  if (step == nullptr || result.attention_rank >= num_servers_ || result.lane >= kMaxLanes ||
      (step->servers[result.attention_rank].pending & lane_bit(result.lane)) == 0) {
    return nullptr;
  }
  return &steps_[result.step - steps_.front().step];
}

bool InFlight::is_blocked(const StepInFlight& step, ServerRank server, LaneId lane) const {
  const ServerStep& own = step.servers[server];
  if ((own.pending & own.after_same_step[lane]) != 0) {
    return true;
  }
  const auto earlier = static_cast<LaneMask>(own.after_earlier_steps[lane] | lane_bit(lane));
  for (const StepInFlight& other : steps_) {
    if (other.step >= step.step) {
      break;
    }
    if ((other.servers[server].pending & earlier) != 0) {
      return true;
    }
  }
  return false;
}

bool InFlight::commit(StepInFlight& step, ServerRank server, LaneId lane) {
  step.servers[server].pending &= static_cast<LaneMask>(~lane_bit(lane));
  return --step.num_pending == 0;
}

void InFlight::pop_committed() {
  while (!steps_.empty() && steps_.front().num_pending == 0) {
    std::swap(next_, steps_.front());  // its vectors serve the next plan
    steps_.pop_front();
  }
}

bool InFlight::has_committed(ServerRank server, const Ticket& ticket) const {
  if (ticket.step == 0 || steps_.empty() || ticket.step < steps_.front().step) {
    return true;
  }
  const StepInFlight* step = find(ticket.step);
  return step != nullptr && (step->servers[server].pending & ticket.lanes) == 0;
}

}  // namespace fastfd::scheduler
