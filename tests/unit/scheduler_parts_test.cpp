// The scheduler's parts, each by itself.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "fastfd/core/check.h"
#include "fastfd/core/row_bucket.h"
#include "scheduler/chunk_cutter.h"
#include "scheduler/cost_model.h"
#include "scheduler/in_flight.h"
#include "scheduler/lane_count.h"
#include "scheduler/page_ledger.h"
#include "scheduler/placement.h"
#include "scheduler/planner.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/request_queue.h"

namespace fastfd::scheduler {
namespace {

TEST(CostModel, LearnsALinearCost) {
  CostModel model;
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const double rows = 1 + random() % 100;
    const double context = rows * (random() % 500);
    model.observe({rows, context}, 50 + 3 * rows + 0.01 * context);
  }
  EXPECT_NEAR(model.predict({10, 1000}), 90, 5);
  EXPECT_NEAR(model.predict({100, 20000}), 550, 20);
  EXPECT_EQ(model.predict({0, 0}), 0);
}

TEST(CostModel, StaysSaneWhenTheBatchNeverChanges) {
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    model.observe({32, 6400}, 200);
  }
  EXPECT_NEAR(model.predict({32, 6400}), 200, 5);
  EXPECT_GT(model.predict({16, 3200}), 80);
  EXPECT_LT(model.predict({16, 3200}), 200);
}

TEST(CostModel, ForgetsAndIgnoresNonsense) {
  CostModel model;
  for (int i = 0; i < 2000; ++i) {
    model.observe({static_cast<double>(1 + i % 50), 0}, 1000.0 * (1 + i % 50));
  }
  for (int i = 0; i < 3000; ++i) {
    model.observe({static_cast<double>(1 + i % 50), 0}, 10.0 * (1 + i % 50));
    model.observe({0, 0}, 1e9);
    model.observe({1, 0}, -5);
  }
  EXPECT_NEAR(model.predict({25, 0}), 250, 25);
}

TEST(PrefixCache, TableSurvivesInsertionsAndEvictionsInAnyOrder) {
  constexpr std::uint32_t kPages = 37;
  PrefixCache cache(kPages, 2);
  std::map<TokenId, PageId> expected;  // by the block's first token
  std::vector<TokenId> on_page(kPages, kNoToken);
  const BlockKey root = cache.root_key("");
  const auto key = [&](TokenId token) {
    return cache.child_key(root, std::vector<TokenId>{token, token + 1});
  };
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    const auto page = static_cast<PageId>(random() % kPages);
    const auto token = static_cast<TokenId>(random() % 100);
    if (!cache.contains_page(page)) {
      ASSERT_EQ(cache.insert(key(token), page), expected.count(token) == 0);
      if (expected.emplace(token, page).second) {
        on_page[page] = token;
        cache.add_idle(page);
      }
    } else if (random() % 2 == 0) {
      const PageId evicted = cache.evict();
      expected.erase(on_page[evicted]);
    }
    const auto probe = static_cast<TokenId>(random() % 100);
    const auto found = cache.find(key(probe));
    ASSERT_EQ(found.has_value(), expected.count(probe) == 1);
    if (found) {
      ASSERT_EQ(*found, expected[probe]);
    }
  }
}

TEST(PrefixCache, EvictsLeastRecentlyUsedAndTheEndOfAChainFirst) {
  PageLedger ledger(4, 1, 2);
  Lease lease;
  const BlockKey root = ledger.cache().root_key("");
  BlockKey key = root;
  std::vector<BlockKey> keys;
  for (TokenId token = 0; token < 4; ++token) {
    const PageId page = ledger.append_page(lease);
    key = ledger.cache().child_key(key, std::vector<TokenId>{token});
    keys.push_back(key);
    ledger.publish(key, page);
  }
  ledger.return_pages(lease);
  EXPECT_EQ(ledger.num_free(), 0U);
  EXPECT_EQ(ledger.num_available(), 4U);
  Lease other;
  ledger.append_page(other);
  EXPECT_FALSE(ledger.cache().find(keys[3])) << "the deepest block";
  EXPECT_TRUE(ledger.cache().find(keys[0]));
  EXPECT_TRUE(ledger.cache().find(keys[2]));
}

TEST(PageLedger, APageIsReturnedOnceByEachHolder) {
  PageLedger ledger(2, 4, 2);
  Lease first;
  Lease second;
  const PageId page = ledger.append_page(first);
  ledger.share_page(second, page);
  EXPECT_EQ(ledger.num_sole_pages(first), 0U);
  ledger.return_pages(first);
  EXPECT_EQ(ledger.num_available(), 1U);
  EXPECT_EQ(ledger.num_sole_pages(second), 1U);
  ledger.return_pages(second);
  EXPECT_EQ(ledger.num_available(), 2U);
  second.pages = {page};
  EXPECT_THROW(ledger.return_pages(second), InternalError);
}

TEST(RequestQueue, ADrainingFrontHoldsTheOthersBack) {
  Sequence fresh;
  fresh.priority = 9;
  Sequence preempted;
  preempted.ever_admitted = true;
  preempted.phase = Phase::kDraining;
  RequestQueue queue;
  queue.push(&fresh);
  EXPECT_EQ(queue.front(), &fresh);
  queue.push(&preempted);
  EXPECT_EQ(queue.front(), nullptr);
  preempted.phase = Phase::kQueued;
  EXPECT_EQ(queue.front(), &preempted);
  EXPECT_EQ(queue.num_new(), 1U);
}

TEST(ChooseServer, HitsWinWithinTheLimit) {
  // {has_room, hit_tokens, time, time_with}
  EXPECT_EQ(choose_server(std::vector<ServerLoad>{{true, 0, 10, 11}, {true, 64, 11, 12}}), 1U);
  EXPECT_EQ(choose_server(std::vector<ServerLoad>{{true, 0, 10, 11}, {true, 64, 20, 21}}), 0U);
  EXPECT_EQ(choose_server(std::vector<ServerLoad>{{false, 0, 10, 11}, {true, 0, 20, 21}}), 1U);
  EXPECT_EQ(choose_server(std::vector<ServerLoad>{{true, 16, 10, 11}, {true, 64, 10, 11}}), 1U);
}

TEST(RowBucket, IsNeverSmallerThanTheRowsAndGrows) {
  std::uint32_t before = 0;
  for (std::uint32_t rows = 1; rows < 3000; ++rows) {
    EXPECT_GE(row_bucket(rows), rows);
    EXPECT_GE(row_bucket(rows), before);
    before = row_bucket(rows);
    EXPECT_EQ(row_bucket(before), before);
  }
}

TEST(RowBucket, TheListHasEveryBucketOnce) {
  std::set<std::uint32_t> buckets;
  for (std::uint32_t rows = 1; rows <= 700; ++rows) {
    buckets.insert(row_bucket(rows));
    const auto listed = row_buckets_up_to(rows);
    EXPECT_TRUE(std::equal(listed.begin(), listed.end(), buckets.begin(), buckets.end())) << rows;
  }
  EXPECT_TRUE(row_buckets_up_to(0).empty());
}

TEST(RowBucket, TypicalSizesEndWithTheLargestAndAscend) {
  EXPECT_EQ(typical_rows_up_to(0), std::vector<std::uint32_t>());
  EXPECT_EQ(typical_rows_up_to(5), (std::vector<std::uint32_t>{1, 2, 4, 5}));
  EXPECT_EQ(typical_rows_up_to(256), row_buckets_up_to(256));
  const auto many = typical_rows_up_to(5000);
  EXPECT_TRUE(std::is_sorted(many.begin(), many.end()));
  EXPECT_EQ(many.back(), 5000U);
  EXPECT_EQ(many[many.size() - 2], 4096U);
}

TEST(ChunkCutter, PiecesCoverTheChunksWithAscendingLanes) {
  std::mt19937 random(3);
  ChunkCutter cutter;
  CostModel cost;
  for (int round = 0; round < 500; ++round) {
    const std::uint32_t num_lanes = 1 + random() % 4;
    LaneTable lanes;
    std::vector<std::unique_ptr<Sequence>> rows;
    for (int i = random() % 40; i > 0; --i) {
      rows.push_back(std::make_unique<Sequence>());
      rows.back()->home_lane = random() % num_lanes;
      rows.back()->planned_len = 1 + random() % 500;
      lanes.add(rows.back().get());
    }
    std::vector<Sequence> sequences(1 + random() % 6);
    std::vector<Chunk> chunks;
    for (Sequence& sequence : sequences) {
      chunks.push_back({&sequence, static_cast<std::uint32_t>(random() % 300),
                        static_cast<std::uint32_t>(1 + random() % 100), random() % 2 == 0});
    }
    std::map<const Sequence*, std::vector<Piece>> pieces;
    for (const Piece& piece : cutter.cut(chunks, lanes, num_lanes, cost)) {
      ASSERT_LT(piece.lane, num_lanes);
      ASSERT_GT(piece.num_tokens, 0U);
      pieces[piece.sequence].push_back(piece);
    }
    for (const Chunk& chunk : chunks) {
      std::uint32_t position = chunk.start;
      LaneId next_lane = 0;
      for (const Piece& piece : pieces[chunk.sequence]) {
        ASSERT_EQ(piece.start, position);
        ASSERT_GE(piece.lane, next_lane);
        next_lane = piece.lane + 1;
        position += piece.num_tokens;
        ASSERT_EQ(piece.samples, chunk.ends_prompt && position == chunk.start + chunk.num_tokens);
      }
      ASSERT_EQ(position, chunk.start + chunk.num_tokens);
    }
  }
}

TEST(ChunkCutter, AnInnerChunkLevelsTheLanes) {
  CostModel cost;
  LaneTable lanes;
  std::vector<std::unique_ptr<Sequence>> rows;
  for (int i = 0; i < 20; ++i) {
    rows.push_back(std::make_unique<Sequence>());
    rows.back()->home_lane = 1;
    rows.back()->planned_len = 2;
    lanes.add(rows.back().get());
  }
  Sequence sequence;
  ChunkCutter cutter;
  const auto& pieces = cutter.cut(std::vector<Chunk>{{&sequence, 0, 40, false}}, lanes, 2, cost);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_NEAR(pieces[0].num_tokens, 30, 1);
  EXPECT_NEAR(pieces[1].num_tokens, 10, 1);
}

/// Two pools whose layer costs `fixed + per_row * rows`, seen through their reports.
struct Pools {
  Pools(double attention_fixed, double attention_row, double ffn_fixed, double ffn_row) {
    std::mt19937 random(5);
    FfnLoad ffn;
    lane_count.observe(ffn);
    for (int i = 0; i < 400; ++i) {
      const double rows = 8 + random() % 56;
      attention.observe({rows, 0}, kLayers * (attention_fixed + attention_row * rows));
      lane_count.on_lane_committed(rows);
      ffn.layers_run += kLayers;
      ffn.compute_us += kLayers * (ffn_fixed + ffn_row * rows);
      lane_count.observe(ffn);
    }
    load = {{64, 0}, 64, 64};
  }
  std::uint32_t settle(std::uint32_t lanes) {
    for (int i = 0; i < 20; ++i) {
      lanes = lane_count.choose(lanes, load, attention);
    }
    return lanes;
  }

  static constexpr int kLayers = 12;
  LaneCount lane_count{0};
  CostModel attention;
  StepLoad load;
};

TEST(LaneCount, InfersTheLayersAndPredictsTheirTimes) {
  Pools pools(10, 1, 20, 2);
  const LayerTimes times = pools.lane_count.predict(2, pools.load, pools.attention);
  EXPECT_NEAR(times.attention_us, 42, 3);
  EXPECT_NEAR(times.ffn_us, 84, 5);
  EXPECT_NEAR(times.layer_us, 168, 10);
}

TEST(LaneCount, SplitsEqualPoolsAndNotWeightBoundOnes) {
  EXPECT_GE(Pools(1, 2, 1, 2).settle(1), 2U) << "one lane leaves half of each pool idle";
  EXPECT_EQ(Pools(1, 0.01, 500, 0.01).settle(3), 1U) << "every lane streams the FFN weights again";
}

TEST(LaneCount, ChangesSeldom) {
  Pools pools(1, 2, 1, 2);
  EXPECT_EQ(pools.lane_count.choose(1, pools.load, pools.attention), 1U);
  EXPECT_EQ(pools.lane_count.choose(1, pools.load, pools.attention), 1U);
  EXPECT_GE(pools.lane_count.choose(1, pools.load, pools.attention), 2U);
  const std::uint32_t settled = pools.settle(1);
  EXPECT_EQ(pools.settle(settled), settled);
  pools.load = {{1, 0}, 1, 1};
  EXPECT_EQ(pools.settle(settled), settled) << "one sequence uses one lane as it is";
}

TEST(LaneCount, MeasuresTheTransferWhereItShows) {
  Pools pools(1, 1, 1, 1);
  for (int i = 0; i < 200; ++i) {
    // One lane of 64 rows: T_a = T_f = 65; the server stood still for 65 + 40.
    pools.lane_count.on_server_step(pools.load, 1, 12 * 65.0, 12 * 105.0, pools.attention);
  }
  const LayerTimes times = pools.lane_count.predict(1, pools.load, pools.attention);
  EXPECT_NEAR(times.transfer_us, 40, 5);
  EXPECT_NEAR(times.layer_us, 170, 10);
  EXPECT_GE(pools.settle(1), 2U);
}

TEST(LaneCount, ARestartedFfnServerIsNotACounterThatRunsBackwards) {
  Pools pools(10, 1, 20, 2);
  FfnLoad fresh;
  fresh.layers_run = 3;
  fresh.compute_us = 1;
  pools.lane_count.on_lane_committed(32);
  pools.lane_count.observe(fresh);
  EXPECT_NEAR(pools.lane_count.predict(2, pools.load, pools.attention).ffn_us, 84, 5);
}

TEST(InFlight, OrdersOnlyWhatDependsOnEachOther) {
  InFlight in_flight(2);
  for (StepId step = 1; step <= 2; ++step) {
    StepInFlight& next = in_flight.prepare(step);
    next.servers[0].planned = 0b11;
    next.servers[1].planned = 0b01;
    if (step == 2) {
      next.servers[0].after_earlier_steps[1] = 0b01;
    }
    in_flight.publish();
  }
  const auto step = [&](StepId id) {
    LaneResult result;
    result.step = id;
    return in_flight.awaiting(result);
  };
  EXPECT_FALSE(in_flight.is_blocked(*step(1), 0, 1));
  EXPECT_TRUE(in_flight.is_blocked(*step(2), 0, 0)) << "one lane's steps come in order";
  InFlight::commit(*step(1), 0, 1);
  EXPECT_TRUE(in_flight.is_blocked(*step(2), 0, 1)) << "it goes on with what lane 0 computed";
  InFlight::commit(*step(1), 0, 0);
  EXPECT_FALSE(in_flight.is_blocked(*step(2), 0, 1));
  EXPECT_TRUE(in_flight.has_committed(0, {1, 0b11}));
  EXPECT_FALSE(in_flight.has_committed(1, {1, 0b01}));
  EXPECT_EQ(in_flight.size(), 2U);
  LaneResult result;
  result.step = 1;
  result.attention_rank = 1;
  EXPECT_TRUE(InFlight::commit(*in_flight.awaiting(result), 1, 0));
  in_flight.pop_committed();
  EXPECT_EQ(in_flight.size(), 1U);
  EXPECT_EQ(in_flight.awaiting(result), nullptr);
}

}  // namespace
}  // namespace fastfd::scheduler
