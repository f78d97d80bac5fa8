// Requests in and tokens out: admission, credit, commit, ends, aborts, epochs.

#include "fastfd/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/scheduler_harness.h"

namespace fastfd::scheduler {
namespace {

using fastfd::testing::FakeCluster;
using ::testing::HasSubstr;

TEST(SchedulerSubmit, RefusesWhatCanNeverRun) {
  SchedulerOptions options = Harness::small_options();
  options.pages_per_server = 4;
  options.max_model_len = 64;
  Scheduler scheduler(options);
  const auto code = [&](Request request) { return scheduler.submit(std::move(request)).code(); };
  EXPECT_EQ(code(Harness::request(1, 0, 4)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Harness::request(1, 4, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Harness::request(1, 64, 1)), StatusCode::kInvalidArgument);
  Request negative = Harness::request(1, 4, 4);
  negative.prompt[2] = kNoToken;
  EXPECT_EQ(code(negative), StatusCode::kInvalidArgument);
  // 4 pages of 8: 33 tokens fit, because the last one is never fed.
  const Status status = scheduler.submit(Harness::request(1, 30, 4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("30 prompt tokens and up to 4 output tokens need 5 KV"));
  EXPECT_THAT(status.message(), HasSubstr("only 4 (32 tokens)"));
  EXPECT_EQ(code(Harness::request(1, 30, 3)), StatusCode::kOk);
  EXPECT_EQ(code(Harness::request(1, 4, 4)), StatusCode::kInvalidArgument) << "id in use";
}

TEST(SchedulerSubmit, QueueIsBounded) {
  SchedulerOptions options = Harness::small_options();
  options.max_queued_requests = 2;
  Harness h(options);
  EXPECT_TRUE(h.submit(1, 4, 4).is_ok());
  EXPECT_TRUE(h.submit(2, 4, 4).is_ok());
  EXPECT_EQ(h.submit(3, 4, 4).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(h.scheduler.has_request(3));
  h.plan();
  EXPECT_TRUE(h.submit(3, 4, 4).is_ok());
}

TEST(SchedulerSubmit, RefusesSenselessOptions) {
  SchedulerOptions options;
  options.plan_ahead = 4;
  EXPECT_THROW(Scheduler{options}, std::invalid_argument);
  options = {};
  options.num_attention_servers = kMaxServers + 1;
  EXPECT_THROW(Scheduler{options}, std::invalid_argument);
}

TEST(SchedulerQueue, PriorityThenFirstComeFirstServed) {
  SchedulerOptions options = Harness::small_options();
  options.max_sequences = 1;
  Harness h(options);
  for (const auto& [id, priority] : {std::pair{1, 0}, {2, 0}, {3, 5}, {4, 5}}) {
    Request request = Harness::request(static_cast<RequestId>(id), 4, 1);
    request.priority = priority;
    ASSERT_TRUE(h.scheduler.submit(request).is_ok());
  }
  std::vector<RequestId> order;
  while (!h.scheduler.idle()) {
    if (const auto plan = h.plan()) {
      for (const auto& [id, open] : opens_of(*plan)) {
        order.push_back(id);
      }
    }
    h.commit_all();
  }
  EXPECT_EQ(order, (std::vector<RequestId>{3, 4, 1, 2}));
}

TEST(SchedulerCredit, AtMostPlanAheadPlusOneUncommittedSteps) {
  for (std::uint32_t plan_ahead = 1; plan_ahead <= 3; ++plan_ahead) {
    for (const bool overlapped : {true, false}) {
      SchedulerOptions options = Harness::small_options();
      options.plan_ahead = plan_ahead;
      options.overlapped = overlapped;
      options.num_attention_servers = 2;
      Harness h(options);
      ASSERT_TRUE(h.submit(1, 4, 30).is_ok());
      ASSERT_TRUE(h.submit(2, 4, 30).is_ok());
      const std::uint32_t credit = overlapped ? 1 + plan_ahead : 1;
      for (std::uint32_t i = 0; i < credit; ++i) {
        ASSERT_TRUE(h.plan()) << "no results are needed for step " << i;
      }
      EXPECT_FALSE(h.plan());
      h.commit(0, 0);
      EXPECT_FALSE(h.plan()) << "server 1 has not committed the step";
      h.commit(1, 0);
      EXPECT_TRUE(h.plan());
      EXPECT_FALSE(h.plan());
    }
  }
}

TEST(SchedulerCommit, OneLaneNeedsNoOther) {
  SchedulerOptions options = Harness::small_options();
  options.microbatches = 2;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 4, 8).is_ok());
  ASSERT_TRUE(h.submit(2, 4, 8).is_ok());
  h.plan();
  h.commit_all();
  const auto plan = h.plan();
  ASSERT_EQ(plan->ffn.lanes.size(), 2U);
  EXPECT_EQ(h.commit(0, 1).size(), 1U) << "lane 1's token waits for lane 0";
  EXPECT_EQ(h.commit(0, 0).size(), 1U);
}

TEST(SchedulerCommit, ChunkCutOverLanesCommitsWhenAllItsLanesHave) {
  SchedulerOptions options = Harness::small_options();
  options.microbatches = 2;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 32, 8).is_ok());
  const auto plan = h.plan();
  ASSERT_EQ(pieces_of(*plan).size(), 2U);
  EXPECT_TRUE(h.commit(0, 1).empty()) << "lane 0 has half of the prompt and has not committed";
  EXPECT_EQ(h.commit(0, 0).size(), 1U);
}

TEST(SchedulerCommit, ChunkThatGoesOnInALowerLaneWaitsForTheStepBefore) {
  SchedulerOptions options = Harness::small_options();
  options.microbatches = 2;
  options.prefill_chunk = 16;
  Harness h(options);
  ASSERT_TRUE(h.submit(9, 1, 30).is_ok());  // a row in lane 1, so the next prompt ends in lane 0
  h.plan();
  h.commit_all();
  ASSERT_TRUE(h.submit(1, 17, 8).is_ok());
  ASSERT_EQ(pieces_of(*h.plan()).size(), 2U);
  const auto second = h.plan();
  ASSERT_EQ(pieces_of(*second).size(), 1U);
  ASSERT_EQ(pieces_of(*second)[0].first, 0U);
  EXPECT_TRUE(h.commit(0, 0).empty());
  EXPECT_TRUE(h.commit(0, 0).empty()) << "lane 1 of the step before has a part of its prompt";
  EXPECT_EQ(h.commit(0, 1).size(), 2U) << "the row's token, then the prompt's first";
}

TEST(SchedulerCommit, DropsWhatDoesNotMatch) {
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.submit(1, 4, 8).is_ok());
  h.plan();
  h.run();
  const LaneResult good = *h.cluster.deliver(0, 0);
  const auto with = [&good](auto change) {
    LaneResult result = good;
    change(result);
    return result;
  };
  EXPECT_TRUE(h.scheduler.commit(with([](auto& r) { r.epoch = 2; })).empty());
  EXPECT_TRUE(h.scheduler.commit(with([](auto& r) { r.step += 1; })).empty());
  EXPECT_TRUE(h.scheduler.commit(with([](auto& r) { r.lane = 1; })).empty());
  EXPECT_TRUE(h.scheduler.commit(with([](auto& r) { r.lane = 99; })).empty());
  EXPECT_TRUE(h.scheduler.commit(with([](auto& r) { r.attention_rank = 7; })).empty());
  EXPECT_EQ(h.scheduler.stats().steps_committed, 0U);
  LaneResult mixed = good;
  mixed.tokens[0].generation += 1;
  mixed.tokens.push_back(good.tokens[0]);
  mixed.tokens.back().position += 1;
  mixed.tokens.push_back(good.tokens[0]);
  mixed.tokens.back().slot = 1000;
  mixed.tokens.push_back(good.tokens[0]);
  EXPECT_EQ(h.scheduler.commit(mixed).size(), 1U) << "only the last token is the slot's next";
  EXPECT_TRUE(h.scheduler.commit(good).empty()) << "a result that comes twice";
}

/// A request whose reference output is long, and one of its tokens to stop at.
struct StopCase {
  Request request = Harness::request(1, 5, 30);
  std::vector<TokenId> tokens = FakeCluster::reference(request, 256).tokens;
  std::size_t first_at(std::size_t index) const {
    return static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), tokens[index]) -
                                    tokens.begin());
  }
};

TEST(SchedulerEnd, AnyStopIdEndsAndIsEmittedAndLateRowsAreDropped) {
  StopCase c;
  Harness h(Harness::small_options());
  const std::size_t end = c.first_at(6);
  c.request.sampling.stop_token_ids = {1000, c.tokens[6]};
  ASSERT_TRUE(h.scheduler.submit(c.request).is_ok());
  // Always two steps ahead of the results, as a busy cluster is.
  while (!h.scheduler.idle()) {
    while (h.plan()) {
    }
    h.commit(0, 0);
  }
  EXPECT_EQ(h.finish[1], FinishReason::kStop);
  EXPECT_EQ(h.tokens[1], std::vector(c.tokens.begin(), c.tokens.begin() + end + 1));
  EXPECT_EQ(h.scheduler.stats().tokens_dropped, 2U);
  EXPECT_EQ(h.scheduler.stats().tokens_generated, end + 1);
}

TEST(SchedulerEnd, IgnoreEosAndMinTokens) {
  StopCase c;
  c.request.sampling.stop_token_ids = {c.tokens[3]};
  c.request.sampling.ignore_eos = true;
  Harness ignoring(Harness::small_options());
  ASSERT_TRUE(ignoring.scheduler.submit(c.request).is_ok());
  ignoring.drain();
  EXPECT_EQ(ignoring.tokens[1].size(), 30U);
  EXPECT_EQ(ignoring.finish[1], FinishReason::kLength);

  // Below min_tokens a stop id does not end the sequence even if a server samples one.
  c.request.sampling.ignore_eos = false;
  c.request.sampling.min_tokens = 2;
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.scheduler.submit(c.request).is_ok());
  h.plan();
  h.run();
  LaneResult result = *h.cluster.deliver(0, 0);
  result.tokens[0].token = c.request.sampling.stop_token_ids[0];
  EXPECT_EQ(h.scheduler.commit(result).at(0).finish, FinishReason::kNone);
}

TEST(SchedulerEnd, StopWinsOverLength) {
  StopCase c;
  const std::size_t end = c.first_at(6);
  c.request.sampling.stop_token_ids = {c.tokens[6]};
  c.request.max_tokens = static_cast<std::uint32_t>(end) + 1;
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.scheduler.submit(c.request).is_ok());
  h.drain();
  EXPECT_EQ(h.tokens[1].size(), end + 1);
  EXPECT_EQ(h.finish[1], FinishReason::kStop);
}

TEST(SchedulerEnd, LengthIsKnownWhilePlanning) {
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.submit(1, 4, 3).is_ok());
  int plans = 0;
  while (!h.scheduler.idle()) {
    while (h.plan()) {
      ++plans;
    }
    h.commit(0, 0);
  }
  EXPECT_EQ(plans, 3);
  EXPECT_EQ(h.tokens[1].size(), 3U);
  EXPECT_EQ(h.finish[1], FinishReason::kLength);
  EXPECT_EQ(h.scheduler.stats().tokens_dropped, 0U);
}

TEST(SchedulerEnd, OutputIsClippedToTheModelsContext) {
  SchedulerOptions options = Harness::small_options();
  options.max_model_len = 10;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 6, 0xffffffffU).is_ok());
  h.drain();
  EXPECT_EQ(h.tokens[1].size(), 4U);
  EXPECT_EQ(h.finish[1], FinishReason::kLength);
}

class SchedulerAbort : public ::testing::TestWithParam<int> {};

/// Aborts after a number of plans, of which none, some or all have committed: in the queue, in the
/// first prefill chunk, decoding with steps in flight, with the last token in flight, at the end.
TEST_P(SchedulerAbort, InAnyStateLeavesNothingBehind) {
  const int plans = GetParam() / 4;
  const int commits = GetParam() % 4;
  SchedulerOptions options = Harness::small_options();
  options.prefill_chunk = 8;
  options.plan_ahead = 3;
  options.prefix_cache = false;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 20, 3).is_ok());
  ASSERT_TRUE(h.submit(2, 4, 30).is_ok());
  for (int i = 0; i < plans; ++i) {
    if (!h.plan()) {
      h.commit(0, 0);
      h.plan();
    }
  }
  for (int i = 0; i < commits; ++i) {
    h.commit(0, 0);
  }
  const std::size_t received = h.tokens[1].size();
  h.scheduler.abort(1);
  h.scheduler.abort(1);
  EXPECT_FALSE(h.scheduler.has_request(1));
  const auto next = h.plan();  // the fake cluster refuses any page that is still named
  if (next) {
    EXPECT_EQ(opens_of(*next).count(1), 0U);
  }
  h.commit_all();
  EXPECT_EQ(h.tokens[1].size(), received) << "a token after the abort";
  h.drain();
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(Harness::request(2, 4, 30), 256).tokens);
  EXPECT_EQ(h.free_pages(), options.pages_per_server);
  EXPECT_EQ(h.scheduler.stats().free_slots[0], Scheduler::slots_per_server(options));
}

INSTANTIATE_TEST_SUITE_P(Moments, SchedulerAbort, ::testing::Range(0, 32));

TEST(SchedulerEpoch, RunningRequestsFailQueuedOnesStay) {
  SchedulerOptions options = Harness::small_options();
  options.max_sequences = 2;
  Harness h(options);
  for (RequestId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(h.submit(id, 12, 6).is_ok());
  }
  const StepId last_step = [&] {
    h.plan();
    h.commit(0, 0);
    return h.plan()->step;
  }();
  h.run();
  const auto events = h.scheduler.begin_epoch(2, "attention server 0 was lost");
  ASSERT_EQ(events.size(), 2U);
  for (RequestId id = 1; id <= 2; ++id) {
    EXPECT_EQ(events[id - 1].request, id);
    EXPECT_EQ(events[id - 1].finish, FinishReason::kError);
    EXPECT_EQ(events[id - 1].error, "attention server 0 was lost");
    EXPECT_FALSE(h.scheduler.has_request(id));
  }
  EXPECT_EQ(h.scheduler.epoch(), 2U);
  EXPECT_TRUE(h.scheduler.has_request(3));
  EXPECT_EQ(h.free_pages(), options.pages_per_server) << "pages and cache start empty";
  for (const LaneResult& late : h.cluster.begin_epoch(2)) {
    EXPECT_TRUE(h.scheduler.commit(late).empty());
  }
  h.tokens.clear();
  const auto plan = h.plan();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->epoch, 2U);
  EXPECT_GT(plan->step, last_step);
  EXPECT_EQ(opens_of(*plan).count(3), 1U);
  h.drain();
  EXPECT_EQ(h.tokens[3], FakeCluster::reference(Harness::request(3, 12, 6), 256).tokens);
}

TEST(SchedulerIdle, OneRequestNeedsNoSecondToMove) {
  Harness h(Harness::small_options());
  EXPECT_TRUE(h.scheduler.idle());
  EXPECT_FALSE(h.plan());
  ASSERT_TRUE(h.submit(1, 4, 1).is_ok());
  EXPECT_FALSE(h.scheduler.idle());
  ASSERT_TRUE(h.plan());
  EXPECT_EQ(h.commit_all().size(), 1U);
  EXPECT_TRUE(h.scheduler.idle());
  EXPECT_FALSE(h.plan()) << "a step in which nobody has rows";
}

}  // namespace
}  // namespace fastfd::scheduler
