#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "fastfd/core/blocking_queue.h"
#include "fastfd/core/check.h"
#include "fastfd/core/dtype.h"
#include "fastfd/core/epoch_loop.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/core/interval_union.h"
#include "fastfd/core/printable.h"
#include "fastfd/core/stop_orders.h"
#include "fastfd/device/cpu.h"

namespace fastfd {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16::from_float(1.0F).bits, 0x3f80);
  // 1 + 2^-8 lies midway between 1 and 1 + 2^-7: the even mantissa wins.
  EXPECT_EQ(bf16::from_float(1.0F + 0x1p-8F).bits, 0x3f80);
  EXPECT_EQ(bf16::from_float(1.0F + 0x1p-7F + 0x1p-8F).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(bf16::from_float(std::numeric_limits<float>::quiet_NaN()).to_float()));
  EXPECT_TRUE(std::isinf(bf16::from_float(std::numeric_limits<float>::max()).to_float()));
}

TEST(Check, NamesTheCallersPlace) {
  try {
    check(false, "impossible");
    FAIL() << "a failed check throws";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("core_test.cpp:"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("impossible"), std::string::npos);
  }
  EXPECT_NO_THROW(check(true, "fine"));
}

TEST(StopOrders, OnlyARepetitionAfterAWhileIsImpatience) {
  using std::chrono::milliseconds;
  const std::chrono::steady_clock::time_point start{std::chrono::hours(1)};
  StopOrders twice_at_once;  // `timeout` and systemd: several copies of one order
  EXPECT_FALSE(twice_at_once.is_impatient(start));
  EXPECT_FALSE(twice_at_once.is_impatient(start));
  EXPECT_FALSE(twice_at_once.is_impatient(start + milliseconds(900)));
  EXPECT_TRUE(twice_at_once.is_impatient(start + milliseconds(1100)));

  StopOrders passed_on;  // by a launcher that was slow to do so
  EXPECT_FALSE(passed_on.is_impatient(start));
  EXPECT_FALSE(passed_on.is_impatient(start + milliseconds(5000), /*from_parent=*/true));
  EXPECT_TRUE(passed_on.is_impatient(start + milliseconds(6000), /*from_parent=*/true));

  StopOrders by_parent;  // a shell's `kill`, twice
  EXPECT_FALSE(by_parent.is_impatient(start, /*from_parent=*/true));
  EXPECT_TRUE(by_parent.is_impatient(start + milliseconds(1500), /*from_parent=*/true));
}

TEST(Printable, EscapesWhatCutsOrGarblesAMessage) {
  EXPECT_EQ(printable("plain \xc3\xa9\n\tline"), "plain \xc3\xa9\n\tline");
  EXPECT_EQ(printable(std::string_view("a\0b\x1b[31m\x7f", 9)), "a\\x00b\\x1b[31m\\x7f");
}

TEST(ExpertPlacement, SharesAreNearEqualWhenServersDontDivideExperts) {
  const auto placement = ExpertPlacement::contiguous(16, 3, 1);
  EXPECT_EQ(placement.experts_of(0).size(), 6U);
  EXPECT_EQ(placement.experts_of(1).size(), 5U);
  EXPECT_EQ(placement.experts_of(2).size(), 5U);
  for (std::uint32_t expert = 0; expert < 16; ++expert) {
    const auto target = placement.target(expert, 0);
    EXPECT_EQ(placement.experts_of(target.ffn_rank)[target.local_expert], expert);
  }
}

TEST(ExpertPlacement, ReplicasLiveOnDifferentServersAndDependOnTheAttentionRank) {
  const auto placement = ExpertPlacement::contiguous(10, 4, 2);
  for (std::uint32_t expert = 0; expert < 10; ++expert) {
    const auto a = placement.target(expert, 0);
    const auto b = placement.target(expert, 1);
    EXPECT_NE(a.ffn_rank, b.ffn_rank);
    EXPECT_EQ(placement.experts_of(b.ffn_rank)[b.local_expert], expert);
  }
}

TEST(ExpertPlacement, EveryServerHasOneDenseSliceForAnAttentionServer) {
  const auto slices = ExpertPlacement::contiguous(10, 3, 2, 7).dense_slices();
  EXPECT_EQ(slices.num_experts(), 3U);
  EXPECT_EQ(slices.version(), 7U);
  for (ServerRank attention = 0; attention < 4; ++attention) {
    std::set<ServerRank> servers;
    for (std::uint32_t slice = 0; slice < 3; ++slice) {
      const auto target = slices.target(slice, attention);
      EXPECT_EQ(slices.experts_of(target.ffn_rank)[target.local_expert], slice);
      servers.insert(target.ffn_rank);
    }
    EXPECT_EQ(servers.size(), 3U);
  }
}

TEST(ExpertPlacement, MoreServersThanExpertsLeavesSomeEmpty) {
  const auto placement = ExpertPlacement::contiguous(2, 3, 1);
  EXPECT_TRUE(placement.experts_of(2).empty());
  EXPECT_THROW(ExpertPlacement::contiguous(4, 2, 3), std::invalid_argument);
}

TEST(WorkerPool, EveryIndexRunsOnce) {
  device::WorkerPool pool(3);
  for (std::size_t count : {0U, 1U, 2U, 7U, 1000U}) {
    std::vector<std::atomic<int>> hits(count);
    pool.parallel_for(count, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        ++hits[i];
      }
    });
    for (const auto& hit : hits) {
      EXPECT_EQ(hit.load(), 1);
    }
  }
}

// Jobs that follow at once meet workers that spin, jobs after a pause such as sleep.
TEST(WorkerPool, EveryIndexRunsOnceWhateverTheWorkersDid) {
  device::WorkerPool pool(4, std::chrono::microseconds(50));
  std::array<std::atomic<std::uint32_t>, 100> hits{};
  std::uint32_t num_jobs = 0;
  for (; num_jobs < 3000; ++num_jobs) {
    if (num_jobs % 500 == 499) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (pool.is_awake() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_FALSE(pool.is_awake()) << "a worker without a job must sleep";
    }
    const std::size_t grain = 1 + num_jobs % 7;
    pool.parallel_for(hits.size(), grain, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        hits[i].fetch_add(1, std::memory_order_relaxed);
      }
    });
    // All of this job is done, and none of the next.
    ASSERT_TRUE(std::ranges::all_of(hits, [&](const auto& hit) {
      return hit.load(std::memory_order_relaxed) == num_jobs + 1;
    }));
  }
}

TEST(HostBuffer, IsAlignedAndZero) {
  for (std::size_t num_bytes : {1U, 100U, 3U << 20}) {
    const device::HostBuffer buffer(num_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_EQ(buffer.as<char>()[num_bytes - 1], 0);
  }
}

TEST(HostArena, BuffersAreZeroDisjointAndOutliveTheArena) {
  std::vector<device::HostBuffer> buffers;
  {
    device::HostArena arena;
    for (const std::size_t num_bytes : {0U, 1U, 100U, 3U << 20, 40U << 20, 15U << 20}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        buffers.push_back(arena.allocate(num_bytes));
        ASSERT_EQ(buffers.back().num_bytes(), num_bytes);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 64, 0U);
      }
    }
  }
  const auto mark = [](std::size_t i) { return static_cast<char>(i + 1); };
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::size_t num_bytes = buffers[i].num_bytes();
    if (num_bytes > 0) {
      EXPECT_EQ(buffers[i].as<char>()[0], 0);
      EXPECT_EQ(buffers[i].as<char>()[num_bytes - 1], 0);
      buffers[i].as<char>()[0] = mark(i);
      buffers[i].as<char>()[num_bytes - 1] = mark(i);
    }
  }
  buffers.erase(buffers.begin() + 4);  // a block lives as long as the last of its buffers
  for (std::size_t i = 4; i < buffers.size(); ++i) {
    if (const std::size_t num_bytes = buffers[i].num_bytes(); num_bytes > 0) {
      EXPECT_EQ(buffers[i].as<char>()[0], mark(i + 1));
      EXPECT_EQ(buffers[i].as<char>()[num_bytes - 1], mark(i + 1));
    }
  }
}

TEST(IntervalUnion, CoversWhatASetOfUnitsCovers) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    IntervalUnion covered(1U << 20);
    std::set<std::uint64_t> units;
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t begin = random() % 200;
      const std::uint64_t end = begin + random() % 12;
      covered.add(begin, end);
      for (std::uint64_t unit = begin; unit < end; ++unit) {
        units.insert(unit);
      }
      ASSERT_EQ(covered.covered(), units.size()) << "round " << round << " after " << i;
    }
  }
}

TEST(IntervalUnion, ForgetsWhatIsBehindTheHorizonButKeepsItsLength) {
  IntervalUnion covered(100);
  covered.add(0, 10);
  covered.add(1000, 1010);
  EXPECT_EQ(covered.covered(), 20U);
  covered.add(950, 1005);  // within the horizon: counted once
  EXPECT_EQ(covered.covered(), 70U);
  covered.add(5, 5);
  EXPECT_EQ(covered.covered(), 70U);
}

struct FakePlan {
  Epoch epoch = 0;
};
struct FakePort {
  void begin_epoch(Epoch /*epoch*/) {}
  void abort() {}
};

TEST(EpochLoop, AFailureFromOutsideEndsTheEpochWithItsReasonAndTheNextOneIsFree) {
  BlockingQueue<Status> failures;
  EpochLoop<FakePlan, FakePort>* self = nullptr;
  EpochLoop<FakePlan, FakePort> loop(
      "test",
      [&self] {
        while (self->take(/*block=*/true)) {
        }
        return Status(StatusCode::kAborted, "over");
      },
      [&](const Status& why) { failures.push(why); });
  self = &loop;
  loop.begin(1, std::make_shared<FakePort>());
  loop.fail({StatusCode::kDeadlineExceeded, "FFN server 1 sent nothing"});
  const auto why = failures.pop();
  ASSERT_TRUE(why);
  EXPECT_EQ(why->message(), "FFN server 1 sent nothing");
  loop.stop();
  loop.fail({StatusCode::kInternal, "too late"});
  loop.begin(2, std::make_shared<FakePort>());
  EXPECT_NE(loop.submit({2}), nullptr);
  loop.stop();
  failures.close();
  EXPECT_FALSE(failures.pop());
}

}  // namespace
}  // namespace fastfd
