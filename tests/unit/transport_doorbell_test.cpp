#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "transport/doorbell.h"
#include "transport/memory.h"

namespace fastfd::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr microseconds kHang = seconds(60);  // never reached unless a wake-up was lost

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

/// FAULTS 32. Two threads hand a token to and fro, always through the futex.
class PingPong : public testing::TestWithParam<std::uint32_t> {};

TEST_P(PingPong, LosesNoWakeUp) {
  constexpr std::uint64_t kRounds = 40000;
  Result<Mapping> memory = Mapping::make_private(2 * sizeof(DoorbellPage));
  ASSERT_TRUE(memory);
  auto* pages = reinterpret_cast<DoorbellPage*>(memory->data());
  std::array<Doorbell, 2> bells{Doorbell(&pages[0]), Doorbell(&pages[1])};
  std::array<std::atomic<std::uint64_t>, 2> tokens{};
  std::atomic<bool> aborted{false};
  std::array<std::uint64_t, 2> rounds{};
  const auto play = [&](std::size_t me) {
    const std::size_t other = 1 - me;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (me == 0) {
        tokens[other].store(round, std::memory_order_release);
        bells[other].ring();
      }
      const WaitOutcome outcome = bells[me].wait({GetParam()}, kHang, aborted, [&] {
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
  std::atomic<bool> aborted{false};
  std::vector<std::thread> ringers;
  ringers.reserve(kRingers);
  for (int i = 0; i < kRingers; ++i) {
    ringers.emplace_back([&, i] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        while (turn.load(std::memory_order_acquire) < round) {
          if (aborted.load()) {
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
    const WaitOutcome outcome = bell.wait({0}, kHang, aborted, [&] {
      for (const auto& flag : flags) {
        if (flag.load(std::memory_order_acquire) != round) {
          return false;
        }
      }
      return true;
    });
    if (outcome != WaitOutcome::kReady) {
      aborted = true;
      break;
    }
    completed = round;
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
  std::atomic<bool> aborted{false};
  std::atomic<bool> is_ready{false};
  std::thread ringer([&] {
    while (std::atomic_ref(reinterpret_cast<DoorbellPage*>(peer->data())->num_waiters).load() ==
           0) {
      std::this_thread::yield();
    }
    is_ready = true;
    there.ring();
  });
  EXPECT_EQ(here.wait({0}, kHang, aborted, [&] { return is_ready.load(); }), WaitOutcome::kReady);
  ringer.join();
}

}  // namespace
}  // namespace fastfd::transport
