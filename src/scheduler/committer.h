#pragma once

#include <vector>

#include "fastfd/core/request.h"
#include "fastfd/core/step_plan.h"
#include "scheduler/state.h"

namespace fastfd::scheduler {

/// Step 8 of a request: results become tokens, committed blocks become cache entries, leases whose
/// last step has committed go back.
class Committer {
 public:
  explicit Committer(State& state) : state_(state) {}

  std::vector<TokenEvent> commit(const LaneResult& result);
  /// Results that wait for another lane belong to the epoch that ends.
  void clear() { held_.clear(); }

 private:
  void apply(StepInFlight& step, const LaneResult& result, std::vector<TokenEvent>& events);
  void commit_pieces(const ServerStep& server, LaneId lane);
  void commit_token(ServerRank server, const SampledToken& sampled,
                    std::vector<TokenEvent>& events);
  /// The sequence has had its last token or event.
  void end(Sequence& sequence);
  void publish_blocks(Sequence& sequence);
  void measure(StepInFlight& step, const LaneResult& result);

  State& state_;
  std::vector<LaneResult> held_;  ///< blocked by a lane that has not committed
};

}  // namespace fastfd::scheduler
