#include "scheduler/request_queue.h"

namespace fastfd::scheduler {

bool RequestQueue::Before::operator()(const Sequence* a, const Sequence* b) const {
  if (a->priority != b->priority) {
    return a->priority > b->priority;
  }
  return a->arrival_order < b->arrival_order;
}

Sequence* RequestQueue::front() const {
  const Group& group = preempted_.empty() ? new_ : preempted_;
  if (group.empty() || (*group.begin())->phase == Phase::kDraining) {
    return nullptr;
  }
  return *group.begin();
}

}  // namespace fastfd::scheduler
