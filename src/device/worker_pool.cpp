#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "fastfd/device/cpu.h"

namespace fastfd::device {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks at the clock, which take less than one: another thread had the core.
constexpr std::chrono::microseconds kLostCore{20};
/// Waits without spinning once a spinner lost its core: somebody needs it more.
constexpr int kWaitsWithoutSpin = 64;
/// Chunks a worker gets on average: those that come late, or are slower, take fewer.
constexpr std::size_t kChunksPerWorker = 4;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Bounded waiting for something that another thread does.
class Spinner {
 public:
  explicit Spinner(std::chrono::microseconds spin) : spin_(spin) {}

  /// True if `ready` came true; false if the caller should sleep.
  template <typename Ready>
  bool spin_until(const Ready& ready) {
    if (ready()) {
      return true;
    }
    if (num_waits_to_skip_ > 0) {
      --num_waits_to_skip_;
      return false;
    }
    const Clock::time_point began = Clock::now();
    Clock::time_point last = began;
    while (last - began < spin_) {
      constexpr int kLooks = 16;
      for (int i = 0; i < kLooks; ++i) {
        if (ready()) {
          return true;
        }
        relax();
      }
      const Clock::time_point now = Clock::now();
      if (now - last > kLostCore) {
        num_waits_to_skip_ = kWaitsWithoutSpin;
        return ready();
      }
      last = now;
    }
    return false;
  }

 private:
  std::chrono::microseconds spin_;
  int num_waits_to_skip_ = 0;
};

}  // namespace

struct WorkerPool::Impl {
  using Body = std::function<void(std::size_t, std::size_t)>;

  /// In `state`: workers may join the job. Below it, how many are at work on it.
  static constexpr std::uint32_t kOpen = 1U << 31;

  Impl(std::uint32_t num_threads, std::chrono::microseconds spin) : caller_spinner(spin) {
    for (std::uint32_t i = 1; i < num_threads; ++i) {
      threads.emplace_back([this, spin] { work(Spinner(spin)); });
    }
  }

  ~Impl() {
    stop.store(true, std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (auto& thread : threads) {
      thread.join();
    }
  }

  void work(Spinner spinner) {
    std::uint32_t seen = 0;
    for (;;) {
      const auto has_changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!spinner.spin_until(has_changed)) {
        num_asleep.fetch_add(1, std::memory_order_relaxed);
        generation.wait(seen, std::memory_order_acquire);
        num_asleep.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      join_job();
    }
  }

  /// Takes part in the job if it is still open: nobody waits for a worker that comes too late.
  void join_job() {
    std::uint32_t now = state.load(std::memory_order_relaxed);
    while ((now & kOpen) != 0) {
      if (state.compare_exchange_weak(now, now + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        run_chunks();
        if (state.fetch_sub(1, std::memory_order_release) == 1) {
          state.notify_one();  // closed, and this was the last
        }
        return;
      }
    }
  }

  void run_chunks() {
    for (;;) {
      const std::size_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= count) {
        return;
      }
      (*body)(begin, std::min(begin + chunk, count));
    }
  }

  void close_job() {
    std::uint32_t now = state.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
    while (now != 0) {
      const auto is_done = [&] {
        now = state.load(std::memory_order_acquire);
        return now == 0;
      };
      if (!caller_spinner.spin_until(is_done) && now != 0) {
        state.wait(now, std::memory_order_acquire);
        now = state.load(std::memory_order_acquire);
      }
    }
  }

  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  std::atomic<std::uint32_t> num_asleep{0};
  Spinner caller_spinner;
  // The job: written while `state` is 0, constant while it is not.
  const Body* body = nullptr;
  std::size_t count = 0;
  std::size_t chunk = 1;
  // Written by several threads in mid-job, each on a cache line of its own.
  alignas(64) std::atomic<std::size_t> next{0};
  alignas(64) std::atomic<std::uint32_t> state{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};  ///< counts jobs; workers sleep on it
};

WorkerPool::WorkerPool(std::uint32_t num_threads, std::chrono::microseconds spin)
    : impl_(std::make_unique<Impl>(std::max(1U, num_threads), spin)) {}
WorkerPool::~WorkerPool() = default;

std::shared_ptr<WorkerPool> WorkerPool::make_if_several(std::uint32_t num_threads,
                                                        std::chrono::microseconds spin) {
  return num_threads > 1 ? std::make_shared<WorkerPool>(num_threads, spin) : nullptr;
}

std::uint32_t WorkerPool::num_threads() const {
  return static_cast<std::uint32_t>(impl_->threads.size()) + 1;
}

bool WorkerPool::is_awake() const { return impl_->num_asleep.load(std::memory_order_relaxed) == 0; }

void WorkerPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
  if (count == 0) {
    return;
  }
  const std::size_t num_workers = impl_->threads.size() + 1;
  if (num_workers == 1 || count <= grain) {
    body(0, count);
    return;
  }
  const std::size_t num_chunks = num_workers * kChunksPerWorker;
  impl_->body = &body;
  impl_->count = count;
  impl_->chunk = std::max({grain, std::size_t{1}, (count + num_chunks - 1) / num_chunks});
  impl_->next.store(0, std::memory_order_relaxed);
  impl_->state.store(Impl::kOpen, std::memory_order_release);
  impl_->generation.fetch_add(1, std::memory_order_release);
  impl_->generation.notify_all();
  impl_->run_chunks();
  impl_->close_job();
}

}  // namespace fastfd::device
