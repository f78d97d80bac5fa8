// Lanes, participants, placement (PROTOCOL 3).

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "unit/scheduler_harness.h"

namespace fastfd::scheduler {
namespace {

using fastfd::testing::FakeCluster;

SchedulerOptions with_lanes(std::uint32_t lanes, std::uint32_t servers = 1) {
  SchedulerOptions options = Harness::small_options();
  options.pages_per_server = 512;
  options.max_sequences = 32;
  options.microbatches = lanes;
  options.num_attention_servers = servers;
  return options;
}

std::uint32_t rows_in(const StepPlan& plan, ServerRank server, LaneId lane) {
  const AttentionLanePlan* lane_plan = find_lane(plan, server, lane);
  return lane_plan == nullptr ? 0 : lane_plan->num_rows;
}

TEST(SchedulerLanes, ALaneThatIsEmptyEverywhereIsNotInThePlan) {
  for (const std::uint32_t lanes : {0U, 2U, 4U}) {
    Harness h(with_lanes(lanes));
    ASSERT_TRUE(h.submit(1, 1, 8).is_ok());
    for (int i = 0; i < 6; ++i) {
      const auto plan = h.plan();
      ASSERT_TRUE(plan);
      EXPECT_EQ(plan->ffn.lanes.size(), 1U);
      ASSERT_EQ(plan->attention.size(), 1U);
      EXPECT_EQ(plan->attention[0].second.lanes.size(), 1U);
      EXPECT_FALSE(plan->attention[0].second.barrier);
      h.commit_all();
    }
    h.drain();
  }
}

// FAULTS 1: 4 + 4 rows and 7 + 1 rows are different shapes, and only the plan says which.
TEST(SchedulerLanes, BothPoolsReplayAGraphOfTheirOwnBucketOrNeither) {
  auto options = with_lanes(1);
  options.num_attention_servers = 2;
  options.use_graphs = true;
  Harness h(options);
  for (RequestId id = 1; id <= 7; ++id) {
    ASSERT_TRUE(h.submit(id, 9, 30).is_ok());
  }
  const auto prompts = h.plan();
  EXPECT_FALSE(prompts->ffn.lanes[0].use_graph);
  EXPECT_FALSE(find_lane(*prompts, 0, 0)->use_graph);
  h.commit_all();
  const auto decode = h.plan();
  EXPECT_TRUE(decode->ffn.lanes[0].use_graph);
  EXPECT_EQ(decode->ffn.lanes[0].row_bucket, 8U);
  for (const ServerRank server : {0U, 1U}) {
    const auto* lane = find_lane(*decode, server, 0);
    EXPECT_TRUE(lane->use_graph);
    EXPECT_EQ(lane->row_bucket, 4U) << lane->num_rows;
  }
  // A prompt on one server makes the lane eager on both.
  ASSERT_TRUE(h.submit(8, 9, 30).is_ok());
  h.commit_all();
  const auto mixed = h.plan();
  EXPECT_FALSE(mixed->ffn.lanes[0].use_graph);
  EXPECT_FALSE(find_lane(*mixed, 0, 0)->use_graph);
  EXPECT_FALSE(find_lane(*mixed, 1, 0)->use_graph);
}

TEST(SchedulerLanes, UnchangedDecodeRowsAreNotListed) {
  Harness h(with_lanes(2));
  for (RequestId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(h.submit(id, 9, 30).is_ok());
  }
  h.plan();
  h.commit_all();
  for (int i = 0; i < 7; ++i) {  // positions 9 to 15 need no page
    const auto plan = h.plan();
    ASSERT_EQ(plan->attention.size(), 1U);
    for (const AttentionLanePlan& lane : plan->attention[0].second.lanes) {
      EXPECT_EQ(lane.num_rows, 2U);
      EXPECT_FALSE(lane.rows.has_value());
      EXPECT_TRUE(lane.leaves.empty() && lane.opens.empty() && lane.pages.empty() &&
                  lane.pieces.empty());
    }
    h.commit_all();
  }
  const auto plan = h.plan();
  EXPECT_EQ(find_lane(*plan, 0, 0)->pages.size(), 2U);
  EXPECT_EQ(find_lane(*plan, 0, 1)->pages.size(), 2U);
}

TEST(SchedulerLanes, AChunkIsCutSoThatLanesAreEquallyLong) {
  for (std::uint32_t lanes = 1; lanes <= 4; ++lanes) {
    Harness h(with_lanes(lanes));
    ASSERT_TRUE(h.submit(1, 60, 8).is_ok());
    const auto pieces = pieces_of(*h.plan());
    ASSERT_EQ(pieces.size(), lanes);
    std::uint32_t position = 0;
    for (LaneId b = 0; b < lanes; ++b) {
      const PrefillPiece& piece = pieces[b].second;
      EXPECT_EQ(pieces[b].first, b);
      EXPECT_EQ(piece.start_position, position);
      EXPECT_EQ(piece.samples, b + 1 == lanes);
      EXPECT_LE(std::abs(static_cast<int>(piece.tokens.size()) - static_cast<int>(60 / lanes)), 1);
      position += static_cast<std::uint32_t>(piece.tokens.size());
    }
    EXPECT_EQ(position, 60U);
    h.commit_all();
    EXPECT_EQ(rows_in(*h.plan(), 0, lanes - 1), 1U) << "home is the lane of the last piece";
    h.drain();
    EXPECT_EQ(h.tokens[1], FakeCluster::reference(Harness::request(1, 60, 8), 256).tokens);
  }
}

TEST(SchedulerLanes, PromptsEvenOutTheDecodeRows) {
  Harness h(with_lanes(2));
  for (RequestId id = 1; id <= 9; ++id) {  // five rows in one lane, four in the other
    ASSERT_TRUE(h.submit(id, 2, 60).is_ok());
  }
  h.plan();
  h.commit_all();
  const auto decode = h.plan();
  const std::uint32_t lane0 = rows_in(*decode, 0, 0);
  ASSERT_EQ(lane0 + rows_in(*decode, 0, 1), 9U);
  h.commit_all();
  ASSERT_TRUE(h.submit(10, 100, 4).is_ok());  // the first chunk may end in any lane
  const auto plan = h.plan();
  EXPECT_EQ(rows_in(*plan, 0, 0) + rows_in(*plan, 0, 1), 9U + 64U);
  EXPECT_LE(
      std::abs(static_cast<int>(rows_in(*plan, 0, 0)) - static_cast<int>(rows_in(*plan, 0, 1))), 5)
      << "lanes with equal predicted times";
  h.drain();
}

TEST(SchedulerLanes, ArrivalsOneByOneAreDealtOutEvenly) {
  Harness h(with_lanes(4));
  for (RequestId id = 1; id <= 12; ++id) {
    ASSERT_TRUE(h.submit(id, 20, 60).is_ok());
    h.plan();
    h.commit_all();
  }
  const auto plan = h.plan();
  for (LaneId b = 0; b < 4; ++b) {
    EXPECT_EQ(rows_in(*plan, 0, b), 3U);
  }
  EXPECT_EQ(h.scheduler.stats().lane_barriers, 0U);
}

/// Eight rows in two lanes, then one lane loses all of its own.
void make_uneven(Harness& h) {
  for (RequestId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(h.submit(id, 5, 100).is_ok());
  }
  const auto plan = h.plan();
  for (const auto& [lane, piece] : pieces_of(*plan)) {
    if (lane == 1) {
      for (const auto& [id, open] : opens_of(*plan)) {
        if (open.slot == piece.slot) {
          h.scheduler.abort(id);
        }
      }
    }
  }
  h.commit_all();
}

TEST(SchedulerLanes, RowsMoveOnlyAtABarrierWithCompleteLists) {
  Harness h(with_lanes(2));
  make_uneven(h);
  int plans = 0;
  std::optional<StepPlan> plan;
  while (true) {
    plan = h.plan();
    ASSERT_TRUE(plan);
    if (plan->attention[0].second.barrier) {
      break;
    }
    for (const AttentionLanePlan& lane : plan->attention[0].second.lanes) {
      EXPECT_FALSE(lane.rows.has_value());
    }
    ASSERT_LT(++plans, 100);
    h.commit_all();
  }
  EXPECT_GT(plans, 4) << "no barrier for a moment's imbalance";
  EXPECT_EQ(h.scheduler.stats().lane_barriers, 1U);
  std::set<SlotId> slots;
  for (LaneId b = 0; b < 2; ++b) {
    const AttentionLanePlan* lane = find_lane(*plan, 0, b);
    ASSERT_NE(lane, nullptr);
    ASSERT_TRUE(lane->rows.has_value());
    EXPECT_EQ(lane->rows->size(), 2U);
    for (const DecodeRow& row : *lane->rows) {
      slots.insert(row.slot);
      EXPECT_EQ(row.last_token, kNoToken) << "it may be in flight";
    }
  }
  EXPECT_EQ(slots.size(), 4U);
  h.drain();
  EXPECT_EQ(h.scheduler.stats().lane_barriers, 1U);
}

TEST(SchedulerLanes, AMovedRowCommitsAfterTheLaneItLeft) {
  Harness h(with_lanes(2));
  make_uneven(h);
  h.plan();
  for (auto plan = h.plan(); !plan->attention[0].second.barrier; plan = h.plan()) {
    ASSERT_LT(plan->step, 100U);
    h.commit(0, 0);  // the step before; only lane 0 has rows
  }
  EXPECT_TRUE(h.commit(0, 1).empty()) << "its rows' earlier tokens are in lane 0's results";
  std::size_t events = 0;
  for (auto more = h.commit(0, 0); !more.empty(); more = h.commit(0, 0)) {
    events += more.size();
  }
  EXPECT_GE(events, 4U);
  h.drain();
}

TEST(SchedulerLanes, LeavesComeOnceAndWithoutRowsIfNeedBe) {
  SchedulerOptions options = with_lanes(2, 2);
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 4, 50).is_ok());
  ASSERT_TRUE(h.submit(2, 4, 3).is_ok());
  std::vector<StepPlan> plans;
  for (int i = 0; i < 6; ++i) {
    plans.push_back(*h.plan());
    h.commit_all();
  }
  // Each server got one; the short one runs three steps and leaves in the fourth.
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(plans[i].attention.size(), 2U);
    for (const auto& lane : plans[i].ffn.lanes) {
      EXPECT_EQ(lane.participants, 3U);
    }
  }
  ASSERT_EQ(plans[3].attention.size(), 2U);
  int leaves = 0;
  for (const auto& [rank, server] : plans[3].attention) {
    for (const AttentionLanePlan& lane : server.lanes) {
      if (!lane.leaves.empty()) {
        ++leaves;
        EXPECT_EQ(lane.num_rows, 0U);
        EXPECT_EQ(lane.participants & (ServerMask{1} << rank), 0U);
      }
    }
  }
  EXPECT_EQ(leaves, 1);
  EXPECT_EQ(plans[4].attention.size(), 1U) << "a server without rows or leaves has no plan";
}

TEST(SchedulerLanes, CountsOverlapWherePossible) {
  Harness h(with_lanes(2));
  ASSERT_TRUE(h.submit(1, 4, 20).is_ok());
  ASSERT_TRUE(h.submit(2, 4, 20).is_ok());
  for (int i = 0; i < 10; ++i) {
    while (h.plan()) {
    }
    h.run();
    for (LaneId b = 0; b < 2; ++b) {
      LaneResult result = *h.cluster.deliver(0, b);
      result.overlapped = b == 0 && i % 2 == 0;
      h.keep(h.scheduler.commit(result));
    }
  }
  const SchedulerStats stats = h.scheduler.stats();
  EXPECT_EQ(stats.steps_committed, 10U);
  EXPECT_EQ(stats.multi_lane_steps, 9U) << "the first step has none before it";
  EXPECT_EQ(stats.overlapped_steps, 4U);
}

// ---- Placement ----

TEST(SchedulerPlacement, SpreadsByPredictedTime) {
  Harness h(with_lanes(1, 3));
  for (RequestId id = 1; id <= 12; ++id) {
    ASSERT_TRUE(h.submit(id, 10, 60).is_ok());
  }
  h.plan();
  h.commit_all();
  const auto plan = h.plan();
  for (ServerRank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(rows_in(*plan, rank, 0), 4U);
  }
}

TEST(SchedulerPlacement, APrefixHitDrawsUntilTheServersAreUneven) {
  SchedulerOptions options = with_lanes(1, 2);
  options.max_batched_tokens = 512;
  Harness h(options);
  Request request = Harness::request(1, 41, 100);
  ASSERT_TRUE(h.scheduler.submit(request).is_ok());
  const auto first = h.plan();
  const ServerRank hot = first->attention[0].first;
  h.commit_all();
  std::array<int, 2> placed{};
  int before_first_spill = 0;
  for (RequestId id = 2; id <= 31; ++id) {
    request.id = id;
    request.sampling.seed = id;
    ASSERT_TRUE(h.scheduler.submit(request).is_ok());
    const auto plan = h.plan();
    for (const auto& [rank, server] : plan->attention) {
      for (const AttentionLanePlan& lane : server.lanes) {
        placed[rank] += static_cast<int>(lane.opens.size());
      }
    }
    before_first_spill += placed[1 - hot] == 0 ? 1 : 0;
    h.commit_all();
  }
  EXPECT_GE(before_first_spill, 2) << "the hit saves its prompt";
  EXPECT_LE(before_first_spill, 8) << "max/mean of the predicted times stays under 1.2";
  EXPECT_GE(std::min(placed[0], placed[1]), 12);
}

}  // namespace
}  // namespace fastfd::scheduler
