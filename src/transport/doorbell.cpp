#include "transport/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace fastfd::transport {

static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

namespace {

// Not FUTEX_PRIVATE: waiter and ringer may be different processes.
void futex_wait(std::uint32_t* word, std::uint32_t expected, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec relative{static_cast<time_t>(seconds.count()),
                          static_cast<long>((timeout - seconds).count())};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake_all(std::uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Doorbell::ring() {
  std::atomic_ref(page_->counter).fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref(page_->num_waiters).load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(&page_->counter);
  }
}

void Doorbell::sleep(std::uint32_t seen, std::chrono::nanoseconds timeout) {
  std::atomic_ref num_waiters(page_->num_waiters);
  num_waiters.fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref(page_->counter).load(std::memory_order_seq_cst) == seen) {
    // Returns at once if the counter has moved; signals and time-outs look the same to callers,
    // who look for their data again anyway.
    futex_wait(&page_->counter, seen, timeout);
  }
  num_waiters.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace fastfd::transport
