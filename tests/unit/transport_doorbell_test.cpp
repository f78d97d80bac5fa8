#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "transport/doorbell.h"
#include "transport/memory.h"

namespace fastfd::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Longer than a test may take: a wait that runs into it would look at its data once more and
// succeed, so a lost wake-up must never get there.
constexpr microseconds kHang = std::chrono::hours(12);

/// Ends waits that make no progress for 20 s, and says so.
class Watchdog {
 public:
  explicit Watchdog(std::vector<Doorbell> bells)
      : bells_(std::move(bells)), thread_([this] { watch(); }) {}
  ~Watchdog() {
    has_ended_ = true;
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  const std::atomic<bool>& aborted() const { return aborted_; }
  void note_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void watch() {
    constexpr milliseconds kLook{10};
    constexpr int kMaxIdleLooks = 2000;
    std::uint64_t last = 0;
    for (int idle = 0; !has_ended_; ++idle) {
      std::this_thread::sleep_for(kLook);
      if (const std::uint64_t now = progress_; now != last) {
        last = now;
        idle = 0;
      }
      if (idle > kMaxIdleLooks) {
        aborted_ = true;
        for (Doorbell& bell : bells_) {
          bell.ring();
        }
      }
    }
  }

  std::vector<Doorbell> bells_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<std::uint64_t> progress_{0};
  std::thread thread_;
};

TEST(Doorbell, LooksBeforeItSleeps) {
  DoorbellPage page{};
  Doorbell bell(&page);
  std::atomic<bool> aborted{false};
  EXPECT_EQ(bell.wait({0}, kHang, aborted, [] { return true; }), WaitOutcome::kReady);
}

TEST(Doorbell, TimesOutSpinningAndSleeping) {
  DoorbellPage page{};
  Doorbell bell(&page);
  std::atomic<bool> aborted{false};
  for (const std::uint32_t spin_us : {0U, 200U, 1000000U}) {
    EXPECT_EQ(bell.wait({spin_us}, milliseconds(5), aborted, [] { return false; }),
              WaitOutcome::kTimedOut);
  }
  EXPECT_EQ(bell.wait({0}, microseconds(-1), aborted, [] { return false; }),
            WaitOutcome::kTimedOut);
  EXPECT_EQ(page.num_waiters, 0U);
}

TEST(Doorbell, AbortWinsOverReady) {
  DoorbellPage page{};
  Doorbell bell(&page);
  std::atomic<bool> aborted{true};
  EXPECT_EQ(bell.wait({0}, kHang, aborted, [] { return true; }), WaitOutcome::kAborted);
}

TEST(Doorbell, LongestTimeoutIsNotAnOverflow) {
  DoorbellPage page{};
  Doorbell bell(&page);
  std::atomic<bool> aborted{false};
  std::atomic<bool> is_ready{false};
  std::thread ringer([&] {
    std::this_thread::sleep_for(milliseconds(5));
    is_ready = true;
    bell.ring();
  });
  EXPECT_EQ(bell.wait({0}, microseconds::max(), aborted, [&] { return is_ready.load(); }),
            WaitOutcome::kReady);
  ringer.join();
}

TEST(Doorbell, RingBetweenLookAndSleepIsSeen) {
  DoorbellPage page{};
  Doorbell bell(&page);
  const std::uint32_t seen = bell.value();
  bell.ring();
  bell.sleep(seen, std::chrono::hours(24));  // returns at once, else the test's time limit ends it
  EXPECT_NE(bell.value(), seen);
}

// The look came out negative; the data and the ring came before the sleep.
TEST(Doorbell, RingBetweenTheLastLookAndTheSleepEndsTheWait) {
  DoorbellPage page{};
  Doorbell bell(&page);
  Watchdog watchdog({bell});
  int num_looks = 0;
  EXPECT_EQ(bell.wait({0}, kHang, watchdog.aborted(),
                      [&] {
                        constexpr int kLastLook = 2;  // after the quick one at the start
                        if (++num_looks == kLastLook) {
                          Doorbell(bell).ring();
                        }
                        return num_looks > kLastLook;
                      }),
            WaitOutcome::kReady);
}

/// FAULTS 32. The ring is aimed at the instructions in which the waiter goes to sleep.
TEST(Doorbell, RingThatRacesWithTheSleepIsNotLost) {
  constexpr std::uint64_t kRounds = 150000;
  constexpr std::uint64_t kMaxDelay = 400;  // loop turns: about as long as going to sleep takes
  DoorbellPage page{};
  Doorbell bell(&page);
  Watchdog watchdog({bell});
  std::atomic<std::uint64_t> turn{0};
  std::atomic<std::uint64_t> flag{0};
  std::thread ringer([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      for (int polls = 0; turn.load(std::memory_order_acquire) < round; ++polls) {
        if (watchdog.aborted()) {
          return;
        }
        if (polls > 1000) {
          std::this_thread::yield();
        }
      }
      for (std::uint64_t i = round * 7919 % kMaxDelay; i > 0; --i) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      flag.store(round, std::memory_order_release);
      Doorbell(bell).ring();
    }
  });
  std::uint64_t completed = 0;
  while (completed < kRounds) {
    const std::uint64_t round = completed + 1;
    turn.store(round, std::memory_order_release);
    if (bell.wait({0}, kHang, watchdog.aborted(), [&] {
          return flag.load(std::memory_order_acquire) == round;
        }) != WaitOutcome::kReady) {
      break;
    }
    completed = round;
    watchdog.note_progress();
  }
  ringer.join();
  EXPECT_EQ(completed, kRounds);
}

/// FAULTS 32. Two threads hand a token to and fro, always through the futex.
class PingPong : public testing::TestWithParam<std::uint32_t> {};

TEST_P(PingPong, LosesNoWakeUp) {
  constexpr std::uint64_t kRounds = 40000;
  Result<Mapping> memory = Mapping::make_private(2 * sizeof(DoorbellPage));
  ASSERT_TRUE(memory);
  auto* pages = reinterpret_cast<DoorbellPage*>(memory->data());
  std::array<Doorbell, 2> bells{Doorbell(&pages[0]), Doorbell(&pages[1])};
  std::array<std::atomic<std::uint64_t>, 2> tokens{};
  Watchdog watchdog({bells[0], bells[1]});
  std::array<std::uint64_t, 2> rounds{};
  const auto play = [&](std::size_t me) {
    const std::size_t other = 1 - me;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (me == 0) {
        tokens[other].store(round, std::memory_order_release);
        bells[other].ring();
      }
      const WaitOutcome outcome = bells[me].wait({GetParam()}, kHang, watchdog.aborted(), [&] {
        return tokens[me].load(std::memory_order_acquire) == round;
      });
      if (outcome != WaitOutcome::kReady) {
        return;
      }
      if (me == 1) {
        tokens[other].store(round, std::memory_order_release);
        bells[other].ring();
      }
      rounds[me] = round;
      watchdog.note_progress();
    }
  };
  std::thread partner(play, 1);
  play(0);
  partner.join();
  EXPECT_EQ(rounds[0], kRounds);
  EXPECT_EQ(rounds[1], kRounds);
}

INSTANTIATE_TEST_SUITE_P(SpinUs, PingPong, testing::Values(0U, 1U, 20U));

TEST(Doorbell, LosesNoWakeUpOfManyRingers) {
  constexpr int kRingers = 4;
  constexpr std::uint64_t kRounds = 5000;
  DoorbellPage page{};
  Doorbell bell(&page);
  std::array<std::atomic<std::uint64_t>, kRingers> flags{};
  std::atomic<std::uint64_t> turn{0};
  Watchdog watchdog({bell});
  std::vector<std::thread> ringers;
  ringers.reserve(kRingers);
  for (int i = 0; i < kRingers; ++i) {
    ringers.emplace_back([&, i] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        while (turn.load(std::memory_order_acquire) < round) {
          if (watchdog.aborted()) {
            return;
          }
          std::this_thread::yield();
        }
        flags[i].store(round, std::memory_order_release);
        Doorbell(bell).ring();
      }
    });
  }
  std::uint64_t completed = 0;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    turn.store(round, std::memory_order_release);
    const WaitOutcome outcome = bell.wait({0}, kHang, watchdog.aborted(), [&] {
      for (const auto& flag : flags) {
        if (flag.load(std::memory_order_acquire) != round) {
          return false;
        }
      }
      return true;
    });
    if (outcome != WaitOutcome::kReady) {
      break;
    }
    completed = round;
    watchdog.note_progress();
  }
  for (std::thread& ringer : ringers) {
    ringer.join();
  }
  EXPECT_EQ(completed, kRounds);
  EXPECT_EQ(page.num_waiters, 0U);
}

TEST(Doorbell, WakesASleeperOfAnotherMapping) {
  // The same memory at two addresses, as in two processes.
  Result<SharedMemory> owner = SharedMemory::make("test-bell", 4096);
  ASSERT_TRUE(owner);
  Result<Mapping> peer = Mapping::map_peer(owner->fd, 4096);
  ASSERT_TRUE(peer);
  ASSERT_NE(owner->mapping.data(), peer->data());
  Doorbell here(reinterpret_cast<DoorbellPage*>(owner->mapping.data()));
  Doorbell there(reinterpret_cast<DoorbellPage*>(peer->data()));
  Watchdog watchdog({here});
  std::atomic<bool> is_ready{false};
  std::thread ringer([&] {
    while (std::atomic_ref(reinterpret_cast<DoorbellPage*>(peer->data())->num_waiters).load() ==
           0) {
      std::this_thread::yield();
    }
    is_ready = true;
    there.ring();
  });
  EXPECT_EQ(here.wait({0}, kHang, watchdog.aborted(), [&] { return is_ready.load(); }),
            WaitOutcome::kReady);
  ringer.join();
}

}  // namespace
}  // namespace fastfd::transport
