#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace fastfd {

/// Tells one order to stop that arrives several times from a second, impatient one (FAULTS 22).
/// `timeout` signals a process and then its group; systemd signals a launcher and its children
/// together, and the launcher passes the order on. Only who repeats an order after a while means
/// "at once". Lock-free and async-signal-safe.
class StopOrders {
 public:
  /// Signals that follow the first one sooner are copies of it.
  static constexpr std::chrono::milliseconds kSameOrder{1000};

  /// A signal has come; true: it is a deliberate second order. The first one of the parent process
  /// never is, however late: a launcher passes on, once, what a child may have heard before.
  bool is_impatient(std::chrono::steady_clock::time_point now, bool from_parent = false) noexcept {
    const bool passed_on = from_parent && !heard_parent_.exchange(true);
    const std::int64_t now_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    std::int64_t first_ns = kNone;
    if (first_ns_.compare_exchange_strong(first_ns, now_ns) || passed_on) {
      return false;
    }
    return std::chrono::nanoseconds(now_ns - first_ns) > kSameOrder;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  static_assert(std::atomic<std::int64_t>::is_always_lock_free, "called in signal handlers");

  std::atomic<std::int64_t> first_ns_{kNone};
  std::atomic<bool> heard_parent_{false};
};

}  // namespace fastfd
