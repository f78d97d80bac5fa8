#pragma once

#include <cstdint>
#include <set>

#include "scheduler/sequence.h"

namespace fastfd::scheduler {

/// Who is admitted next: sequences that were preempted, then new ones; in each group higher
/// priority first, then first come first served. Only the front is ever admitted, so nobody is
/// overtaken for ever by smaller requests.
class RequestQueue {
 public:
  /// New requests only: preempted ones always have a place.
  std::uint32_t num_new() const { return static_cast<std::uint32_t>(new_.size()); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(new_.size() + preempted_.size()); }
  bool empty() const { return new_.empty() && preempted_.empty(); }

  void push(Sequence* sequence) { group(*sequence).insert(sequence); }
  void remove(Sequence* sequence) { group(*sequence).erase(sequence); }

  /// nullptr if the queue is empty, or if its front is still draining: whatever became free
  /// meanwhile is for the sequence that was preempted to free it.
  Sequence* front() const;

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };
  using Group = std::set<Sequence*, Before>;
  Group& group(const Sequence& sequence) { return sequence.ever_admitted ? preempted_ : new_; }

  Group preempted_;
  Group new_;
};

}  // namespace fastfd::scheduler
