#include "gateway/token_router.h"

#include <chrono>
#include <iterator>

namespace fastfd::gateway {

void TokenRouter::on_events(std::vector<TokenEvent> events) {
  if (events.empty()) {
    return;
  }
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = pending_.empty();
    if (first) {
      pending_.swap(events);
    } else {
      pending_.insert(pending_.end(), std::make_move_iterator(events.begin()),
                      std::make_move_iterator(events.end()));
    }
  }
  if (first) {
    wake_();
  }
}

void TokenRouter::attach(RequestId id, TokenReceiver* receiver, std::uint32_t choice) {
  routes_.insert_or_assign(id, Route{receiver, choice});
}

void TokenRouter::deliver() {
  {
    const std::lock_guard lock(mutex_);
    batch_.swap(pending_);
  }
  const SteadyTime now = std::chrono::steady_clock::now();
  for (const TokenEvent& event : batch_) {
    const auto route = routes_.find(event.request);
    if (route == routes_.end()) {
      continue;
    }
    TokenReceiver* receiver = route->second.receiver;
    if (!receiver->in_batch_) {
      receiver->in_batch_ = true;
      touched_.push_back(receiver);
    }
    receiver->on_token(route->second.choice, event, now);
  }
  for (TokenReceiver* receiver : touched_) {
    receiver->in_batch_ = false;
    receiver->on_batch_end();
  }
  touched_.clear();
  batch_.clear();
}

}  // namespace fastfd::gateway
