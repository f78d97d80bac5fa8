#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fastfd/control_plane/member_link.h"

namespace fastfd::coordinator {

/// What other threads leave for the engine's.
namespace event {

struct Wake {};  ///< something changed under the engine's mutex: look at it
struct Abort {
  RequestId id;
};
struct Registered {
  control_plane::SessionId session;
  control_plane::Registration registration;
  std::shared_ptr<control_plane::MemberLink> link;
};
struct Ready {
  control_plane::SessionId session;
  Epoch epoch;
};
struct StopAcked {
  control_plane::SessionId session;
  Epoch next_epoch;
};
struct Reported {
  control_plane::SessionId session;
  LaneResult result;
};
struct Heartbeat {
  control_plane::SessionId session;
  control_plane::Heartbeat heartbeat;
};
struct Load {
  control_plane::SessionId session;
  FfnLoad load;
};
struct Failed {
  control_plane::SessionId session;
  std::string message;
};
struct Lost {
  control_plane::SessionId session;
  std::string reason;
};

}  // namespace event

using Event =
    std::variant<event::Wake, event::Abort, event::Registered, event::Ready, event::StopAcked,
                 event::Reported, event::Heartbeat, event::Load, event::Failed, event::Lost>;

/// Any thread pushes, the engine's thread takes everything at once.
class EventQueue {
 public:
  void push(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    not_empty_.notify_one();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_one();
  }

  /// Blocks until there are events, until `deadline` if there is one, or until closed (false).
  bool take_all(std::optional<SteadyTime> deadline, std::vector<Event>* events) {
    events->clear();
    std::unique_lock lock(mutex_);
    const auto something_came = [this] { return closed_ || !events_.empty(); };
    if (deadline) {
      not_empty_.wait_until(lock, *deadline, something_came);
    } else {
      not_empty_.wait(lock, something_came);
    }
    events->swap(events_);
    return !closed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::vector<Event> events_;
  bool closed_ = false;
};

}  // namespace fastfd::coordinator
