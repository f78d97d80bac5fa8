#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// One per receiving server, in memory that its peers map too. The two words have lines of their
/// own: writers hit `counter` on every hop and only read `num_waiters`.
struct DoorbellPage {
  alignas(128) std::uint32_t counter;
  alignas(128) std::uint32_t num_waiters;
};

/// Lets one thread sleep until another thread or process has something for it: bounded spinning,
/// then a futex. A wake-up can't be lost, because
///   - the waiter takes the counter before it looks for its data, and the kernel refuses to sleep
///     when the counter has moved since;
///   - ringing raises the counter, then reads num_waiters; waiting raises num_waiters, then reads
///     the counter. All four are sequentially consistent (on x86 the read-modify-writes are the
///     fences), so at least one side sees the other.
/// The page must outlive the doorbell. Any thread may ring; each waiter waits on its own stack.
class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(DoorbellPage* page) : page_(page) {}

  /// Call after the data is released. A system call only if somebody sleeps.
  void ring();

  /// Take it before looking for data, then give it to sleep().
  std::uint32_t value() const {
    return std::atomic_ref(page_->counter).load(std::memory_order_acquire);
  }

  /// Sleeps until value() differs from `seen` or about `timeout` has passed; may return early.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds timeout);

  /// Blocks until `ready()` (kReady), `aborted` (kAborted) or the timeout (kTimedOut). Whoever
  /// makes `ready` true or raises `aborted` must ring afterwards. `ready` must be cheap: it is
  /// polled. Spins policy.spin_us before each sleep.
  template <typename Ready>
  WaitOutcome wait(WaitPolicy policy, std::chrono::microseconds timeout,
                   const std::atomic<bool>& aborted, Ready ready);

 private:
  DoorbellPage* page_ = nullptr;
};

/// Tells the core that this is a spin loop, so that a sibling hyper-thread gets the pipeline.
inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

template <typename Ready>
WaitOutcome Doorbell::wait(WaitPolicy policy, std::chrono::microseconds timeout,
                           const std::atomic<bool>& aborted, Ready ready) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPollsPerClockRead = 32;
  constexpr std::chrono::microseconds kLongestWait = std::chrono::hours(24);
  if (aborted.load(std::memory_order_acquire)) {
    return WaitOutcome::kAborted;
  }
  if (ready()) {
    return WaitOutcome::kReady;
  }
  const auto deadline = Clock::now() + std::min(timeout, kLongestWait);
  for (;;) {
    const auto spin_end =
        std::min(deadline, Clock::now() + std::chrono::microseconds(policy.spin_us));
    while (policy.spin_us > 0 && Clock::now() < spin_end) {
      for (int i = 0; i < kPollsPerClockRead; ++i) {
        pause_cpu();
        if (aborted.load(std::memory_order_acquire)) {
          return WaitOutcome::kAborted;
        }
        if (ready()) {
          return WaitOutcome::kReady;
        }
      }
    }
    // The counter first: what arrives after the look below has moved it.
    const std::uint32_t seen = value();
    if (aborted.load(std::memory_order_acquire)) {
      return WaitOutcome::kAborted;
    }
    if (ready()) {
      return WaitOutcome::kReady;
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      return WaitOutcome::kTimedOut;
    }
    sleep(seen, deadline - now);
  }
}

}  // namespace fastfd::transport
