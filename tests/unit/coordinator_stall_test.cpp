#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/in_flight.h"
#include "coordinator/pool_meter.h"
#include "coordinator/stall_detector.h"
#include "coordinator/work_meters.h"

namespace fastfd::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr SteadyTime kNow{std::chrono::hours(1)};
constexpr SteadyTime kLongAgo = kNow - seconds(20);
constexpr milliseconds kTimeout{10000};
constexpr std::uint32_t kNumLayers = 4;

ServerView view(Role role, ServerRank rank, ServerProgress progress, std::uint32_t busy_lanes = 1,
                SteadyTime still_since = kLongAgo) {
  return {role, rank, progress, busy_lanes, still_since};
}

std::optional<Stall> judge(const std::vector<ServerView>& servers) {
  return find_stall(servers, kNumLayers, kNow, kTimeout);
}

ServerProgress lane0(StepId step, std::uint32_t layer, bool waiting) {
  return {{{step, layer, waiting}, {}, {}, {}}};
}

TEST(FindStall, BlamesAnFfnServerThatComputesForEver) {
  const auto stall =
      judge({view(Role::kAttention, 0, lane0(5, 1, true)), view(Role::kFfn, 0, lane0(5, 2, true)),
             view(Role::kFfn, 1, lane0(5, 1, false))});
  ASSERT_TRUE(stall && stall->culprit);
  EXPECT_EQ(*stall->culprit, std::pair(Role::kFfn, ServerRank{1}));
}

TEST(FindStall, BlamesAnFfnServerThatComputesTheLastLayerForEver) {
  const auto stall = judge({view(Role::kAttention, 0, lane0(5, kNumLayers - 1, true)),
                            view(Role::kFfn, 0, lane0(5, kNumLayers - 1, false))});
  ASSERT_TRUE(stall && stall->culprit);
  EXPECT_EQ(stall->culprit->first, Role::kFfn);
}

TEST(FindStall, BlamesTheAttentionServerThatTheOthersWaitFor) {
  // FFN server 0 has attention server 0's dispatch and waits for attention server 1's.
  const auto stall = judge({view(Role::kAttention, 0, lane0(5, 1, true)),
                            view(Role::kAttention, 1, lane0(5, 1, false)),
                            view(Role::kFfn, 0, lane0(5, 1, true))});
  ASSERT_TRUE(stall && stall->culprit);
  EXPECT_EQ(*stall->culprit, std::pair(Role::kAttention, ServerRank{1}));
  EXPECT_THAT(stall->description,
              HasSubstr("attention server 1 (lane 0 at step 5 layer 1) has not moved"));
}

TEST(FindStall, AnFfnServerThatHasDoneAllItsLayersIsInnocent) {
  // Attention server 0 hangs in sampling; the FFN server's last position says nothing.
  const auto stall = judge({view(Role::kAttention, 0, lane0(5, kNumLayers - 1, false)),
                            view(Role::kFfn, 0, lane0(5, kNumLayers - 1, false))});
  ASSERT_TRUE(stall && stall->culprit);
  EXPECT_EQ(stall->culprit->first, Role::kAttention);
}

TEST(FindStall, AnAttentionServerWaitsIfAnyOfItsLanesDoes) {
  const ServerProgress lanes{{{5, 2, true}, {5, 1, false}, {}, {}}};
  const auto stall = judge({view(Role::kAttention, 0, lanes, 3),
                            view(Role::kFfn, 0, {{{5, 2, false}, {5, 1, true}, {}, {}}}, 3)});
  ASSERT_TRUE(stall && stall->culprit);
  EXPECT_EQ(stall->culprit->first, Role::kFfn);
}

TEST(FindStall, WhoOwesNothingIsNotBlamed) {
  EXPECT_FALSE(judge({view(Role::kAttention, 0, lane0(5, 1, false), 0),
                      view(Role::kAttention, 1, lane0(9, 1, true), 1, kNow),
                      view(Role::kFfn, 0, lane0(9, 1, false), 1, kNow)}));
}

TEST(FindStall, WhoMovesIsNotBlamedHoweverLongOthersWait) {
  EXPECT_FALSE(judge({view(Role::kAttention, 0, lane0(5, 1, true)),
                      view(Role::kFfn, 0, lane0(5, 1, false), 1, kNow - seconds(9))}));
}

TEST(FindStall, ALostSignalHasNoCulprit) {
  const auto stall =
      judge({view(Role::kAttention, 0, lane0(5, 1, true)), view(Role::kFfn, 0, lane0(5, 1, true))});
  ASSERT_TRUE(stall);
  EXPECT_FALSE(stall->culprit);
  EXPECT_THAT(stall->description, HasSubstr("lane 0 at step 5 layer 1 waiting"));
}

TEST(InFlight, CountsWhatIsOwedByServerAndLane) {
  StepPlan plan;
  AttentionStepPlan first;
  first.lanes.resize(2);
  first.lanes[0].participants = 0b11;
  first.lanes[1].lane = 2;
  first.lanes[1].participants = 0b01;
  AttentionStepPlan second;
  second.lanes.resize(2);
  second.lanes[0].participants = 0b11;
  second.lanes[1].lane = 2;
  second.lanes[1].participants = 0b01;  // leaves only: reports nothing
  plan.attention = {{0, first}, {1, second}};
  InFlight in_flight;
  EXPECT_TRUE(in_flight.empty());
  in_flight.published(plan, kLongAgo);
  in_flight.published(plan, kNow);
  EXPECT_EQ(in_flight.lanes_of(0), 0b101U);
  EXPECT_EQ(in_flight.lanes_of(1), 0b001U);
  EXPECT_EQ(in_flight.lanes(), 0b101U);
  EXPECT_EQ(in_flight.since(1), kLongAgo);

  LaneResult result;
  result.attention_rank = 1;
  in_flight.reported(result);
  EXPECT_EQ(in_flight.lanes_of(1), 0b001U);
  in_flight.reported(result);
  EXPECT_EQ(in_flight.lanes_of(1), 0U);
  in_flight.reported(result);  // nothing owed: no underflow
  EXPECT_FALSE(in_flight.empty());
  in_flight.published(plan, kNow);
  EXPECT_EQ(in_flight.since(1), kNow);
  EXPECT_EQ(in_flight.since(), kLongAgo);
  in_flight.clear();
  EXPECT_TRUE(in_flight.empty());
}

TEST(PoolMeter, SharesAreOverTheWindowAndAllServers) {
  PoolMeter meter(2);
  EXPECT_EQ(meter.shares(kNow).compute_us, 0.0);
  // 100 s in which each second brings 1 s of computing and 0.5 s of waiting by both together...
  for (int i = 0; i < 100; ++i) {
    meter.add({1e6, 0.5e6}, kNow + seconds(i));
  }
  EXPECT_NEAR(meter.shares(kNow + seconds(100)).compute_us, 0.5, 0.06);
  EXPECT_NEAR(meter.shares(kNow + seconds(100)).wait_us, 0.25, 0.03);
  // ... and then nothing.
  EXPECT_LT(meter.shares(kNow + seconds(300)).compute_us, 0.01);
}

TEST(WorkMeters, LoadsAreCumulativeAndMayStartOver) {
  WorkMeters meters(1, 2);
  FfnLoad load;
  load.ffn_rank = 1;
  load.compute_us = 100;
  load.wait_us = 10;
  meters.add(load, kNow);
  load.compute_us = 150;
  load.wait_us = 30;
  meters.add(load, kNow);
  EXPECT_EQ(meters.ffn()[1].compute_us, 150);
  EXPECT_EQ(meters.ffn()[1].wait_us, 30);
  load.compute_us = 20;  // a new process
  load.wait_us = 5;
  meters.add(load, kNow);
  EXPECT_EQ(meters.ffn()[1].compute_us, 170);
  EXPECT_EQ(meters.ffn()[1].wait_us, 35);
  EXPECT_EQ(meters.ffn()[0].compute_us, 0);
}

}  // namespace
}  // namespace fastfd::coordinator
