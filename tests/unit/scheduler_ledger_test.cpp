// Pages, slots, prefix cache and preemption (PROTOCOL 2).

#include <gtest/gtest.h>

#include <set>

#include "unit/scheduler_harness.h"

namespace fastfd::scheduler {
namespace {

using fastfd::testing::FakeCluster;

TEST(SchedulerLedger, PagesReturnWhenTheLastStepThatNamesThemCommits) {
  SchedulerOptions options = Harness::small_options();
  options.prefix_cache = false;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 16, 30).is_ok());
  h.plan();
  h.commit_all();
  h.plan();
  h.plan();
  h.scheduler.abort(1);
  EXPECT_EQ(h.free_pages(), 61U) << "three pages, two steps in flight that write the third";
  h.commit(0, 0);
  EXPECT_EQ(h.free_pages(), 61U);
  h.commit(0, 0);
  EXPECT_EQ(h.free_pages(), 64U);
}

TEST(SchedulerLedger, SlotsReturnWhenTheLastStepThatNamesThemCommits) {
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.submit(1, 16, 1).is_ok());
  h.plan();  // its only token is planned: it is in no later plan
  EXPECT_EQ(h.scheduler.stats().running, 0U);
  EXPECT_EQ(h.scheduler.stats().free_slots[0], 15U);
  h.commit_all();
  EXPECT_EQ(h.scheduler.stats().free_slots[0], 16U);
}

TEST(SchedulerLedger, ASequenceWithoutANextTokenEndsAloneAndGivesEverythingBack) {
  SchedulerOptions options = Harness::small_options();
  options.prefix_cache = false;
  Harness h(options);
  ASSERT_TRUE(h.submit(1, 16, 30).is_ok());
  ASSERT_TRUE(h.submit(2, 16, 30).is_ok());
  const auto plan = h.plan();
  ASSERT_TRUE(plan.has_value());
  const SlotId failing = opens_of(*plan).at(1).slot;
  h.plan();  // one that names its row already
  h.run();
  auto result = h.cluster.deliver(0, 0);
  ASSERT_TRUE(result.has_value());
  for (SampledToken& sampled : result->tokens) {
    sampled.token = sampled.slot == failing ? kNoToken : sampled.token;
  }
  const auto events = h.keep(h.scheduler.commit(*result));
  ASSERT_EQ(events.size(), 2U);
  for (const TokenEvent& event : events) {
    EXPECT_EQ(event.finish, event.request == 1 ? FinishReason::kError : FinishReason::kNone);
    EXPECT_EQ(event.error.empty(), event.request != 1);
  }
  h.commit_all();
  h.drain();
  EXPECT_EQ(h.tokens.count(1), 0U);
  const Request other = Harness::request(2, 16, 30);
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(other, h.options.max_model_len).tokens);
  EXPECT_EQ(h.free_pages(), 64U);
  EXPECT_EQ(h.scheduler.stats().free_slots[0], 16U);
}

TEST(SchedulerLedger, SuccessorTakesTheSlotUnderANewGeneration) {
  SchedulerOptions options = Harness::small_options();
  options.max_sequences = 1;
  Harness h(options);
  std::map<SlotId, Generation> generations;
  for (RequestId id = 1; id <= 12; ++id) {
    ASSERT_TRUE(h.submit(id, 4 + static_cast<std::uint32_t>(id), 1 + id % 3).is_ok());
  }
  while (!h.scheduler.idle()) {
    while (const auto plan = h.plan()) {
      for (const auto& [id, open] : opens_of(*plan)) {
        EXPECT_GT(open.generation, generations[open.slot]);
        generations[open.slot] = open.generation;
      }
    }
    h.commit(0, 0);
  }
  EXPECT_EQ(generations.size(), 2U);
  for (RequestId id = 1; id <= 12; ++id) {
    const Request request = Harness::request(id, 4 + static_cast<std::uint32_t>(id), 1 + id % 3);
    EXPECT_EQ(h.tokens[id], FakeCluster::reference(request, 256).tokens);
  }
}

/// What the plan that opens a sequence with this prompt finds in the cache, in pages.
std::size_t cached_pages_of(Harness& h, RequestId id, const std::vector<TokenId>& prompt,
                            const std::string& salt = "") {
  Request request = Harness::request(id, 1, 4);
  request.prompt = prompt;
  request.cache_salt = salt;
  EXPECT_TRUE(h.scheduler.submit(request).is_ok());
  const auto plan = h.plan();
  EXPECT_TRUE(plan);
  return opens_of(*plan).at(id).cached_pages.size();
}

TEST(SchedulerPrefixCache, BlocksAreFoundOnlyOnceTheirStepHasCommitted) {
  Harness h(Harness::small_options());
  const auto prompt = Harness::request(1, 33, 1).prompt;
  EXPECT_EQ(cached_pages_of(h, 1, prompt), 0U);
  EXPECT_EQ(cached_pages_of(h, 2, prompt), 0U) << "published while its step is in flight";
  h.commit(0, 0);
  EXPECT_EQ(cached_pages_of(h, 3, prompt), 4U);
  EXPECT_EQ(h.scheduler.stats().prompt_tokens_cached, 32U);
  const auto events = h.commit_all();
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const TokenEvent& event) {
    return event.request == 3 && event.num_cached_tokens == 32;
  }));
}

TEST(SchedulerPrefixCache, EachLanePublishesItsOwnBlocks) {
  SchedulerOptions options = Harness::small_options();
  options.microbatches = 2;
  Harness h(options);
  const auto prompt = Harness::request(1, 33, 1).prompt;
  cached_pages_of(h, 1, prompt);
  h.commit(0, 0);
  EXPECT_EQ(cached_pages_of(h, 2, prompt), 2U) << "lane 1 has not committed its half";
  h.commit_all();
  EXPECT_EQ(cached_pages_of(h, 3, prompt), 4U);
  h.drain();
}

TEST(SchedulerPrefixCache, AFullHitLeavesTheLastBlockToCompute) {
  Harness h(Harness::small_options());
  const auto prompt = Harness::request(1, 32, 1).prompt;
  cached_pages_of(h, 1, prompt);
  h.commit_all();
  Request again = Harness::request(2, 32, 4);
  again.prompt = prompt;
  ASSERT_TRUE(h.scheduler.submit(again).is_ok());
  const auto plan = h.plan();
  const SlotOpen open = opens_of(*plan).at(2);
  EXPECT_EQ(open.cached_pages.size(), 3U) << "the hit covers at most 31 tokens";
  const auto pieces = pieces_of(*plan);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].second.start_position, 24U);
  ASSERT_EQ(pieces[0].second.new_pages.size(), 1U) << "recomputed into a fresh page";
  h.drain();
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(again, 256).tokens);
}

Request another_choice(RequestId id, const Request& of, std::uint32_t max_tokens) {
  Request request = Harness::request(id, 1, max_tokens);
  request.prompt = of.prompt;
  request.fork_of = of.id;
  return request;
}

TEST(SchedulerForks, ShareFullPagesAndCopyThePartialOne) {
  for (const bool prefix_cache : {true, false}) {
    SchedulerOptions options = Harness::small_options();
    options.prefix_cache = prefix_cache;
    Harness h(options);
    const Request first = Harness::request(1, 20, 12);
    const Request second = another_choice(2, first, 9);
    const Request third = another_choice(3, first, 5);
    for (const Request& request : {first, second, third}) {
      ASSERT_TRUE(h.scheduler.submit(request).is_ok());
    }
    EXPECT_EQ(h.scheduler.stats().queued, 3U);
    const auto prefill = h.plan();
    EXPECT_EQ(opens_of(*prefill).size(), 1U) << "the others wait for the prompt";
    const auto pages = pieces_of(*prefill).at(0).second.new_pages;
    ASSERT_EQ(pages.size(), 3U);
    h.plan();
    h.commit_all();
    const auto plan = h.plan();
    auto opens = opens_of(*plan);
    ASSERT_EQ(opens.size(), 2U);
    for (const RequestId id : {2, 3}) {
      EXPECT_EQ(opens[id].cached_pages, std::vector<PageId>(pages.begin(), pages.begin() + 2));
      ASSERT_TRUE(opens[id].copy_page);
      EXPECT_EQ(opens[id].copy_page->source, pages[2]);
      EXPECT_EQ(opens[id].copy_page->num_tokens, 3U);
    }
    for (const auto& [lane, piece] : pieces_of(*plan)) {
      EXPECT_EQ(piece.start_position, 19U) << "the last token is fed for its logits";
      EXPECT_TRUE(piece.new_pages.empty());
    }
    h.drain();
    EXPECT_EQ(h.scheduler.stats().prompt_tokens_computed, 22U);
    EXPECT_EQ(h.scheduler.stats().pages_copied, 2U);
    for (const Request& request : {first, second, third}) {
      EXPECT_EQ(h.tokens[request.id], FakeCluster::reference(request, 256).tokens);
    }
    EXPECT_EQ(h.free_pages() + h.scheduler.stats().cached_pages[0], 64U);
  }
}

TEST(SchedulerForks, APromptThatEndsOneTokenIntoAPageNeedsNoCopy) {
  Harness h(Harness::small_options());
  const Request first = Harness::request(1, 17, 6);
  const Request second = another_choice(2, first, 6);
  ASSERT_TRUE(h.scheduler.submit(first).is_ok());
  h.plan();
  h.commit_all();
  ASSERT_TRUE(h.scheduler.submit(second).is_ok()) << "comes when the prompt is there already";
  const auto open = opens_of(*h.plan()).at(2);
  EXPECT_EQ(open.cached_pages.size(), 2U);
  EXPECT_FALSE(open.copy_page);
  h.drain();
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(second, 256).tokens);
}

TEST(SchedulerForks, TheCopiedPageIsHeldUntilTheCopyHasCommitted) {
  SchedulerOptions options = Harness::small_options();
  options.prefix_cache = false;
  options.microbatches = 2;
  Harness h(options);
  const Request first = Harness::request(1, 20, 30);
  ASSERT_TRUE(h.scheduler.submit(first).is_ok());
  h.plan();
  h.commit_all();
  ASSERT_TRUE(h.scheduler.submit(another_choice(2, first, 30)).is_ok());
  const auto plan = h.plan();
  const LaneId copies_in = pieces_of(*plan).at(0).first;
  const LaneId parent_in = 1 - copies_in;
  ASSERT_NE(find_lane(*plan, 0, parent_in), nullptr) << "parent and choice share a lane";
  h.scheduler.abort(1);
  h.commit(0, parent_in);
  EXPECT_EQ(h.free_pages(), 64U - 3 - 1) << "two shared pages, the copy, and what it is made of";
  h.commit(0, copies_in);
  EXPECT_EQ(h.free_pages(), 64U - 3);
  h.drain();
  EXPECT_EQ(h.free_pages(), 64U);
}

TEST(SchedulerForks, StartAloneIfTheOtherIsGone) {
  Harness h(Harness::small_options());
  const Request first = Harness::request(1, 20, 6);
  const Request second = another_choice(2, first, 6);
  const Request third = another_choice(3, first, 6);
  for (const Request& request : {first, second, third}) {
    ASSERT_TRUE(h.scheduler.submit(request).is_ok());
  }
  h.scheduler.abort(1);
  h.scheduler.abort(3);
  EXPECT_EQ(h.scheduler.stats().queued, 1U);
  const auto open = opens_of(*h.plan()).at(2);
  EXPECT_TRUE(open.cached_pages.empty());
  h.drain();
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(second, 256).tokens);
  EXPECT_TRUE(h.tokens[3].empty());
}

TEST(SchedulerForks, SurviveTheEpochInWhichTheOtherFails) {
  Harness h(Harness::small_options());
  const Request first = Harness::request(1, 20, 6);
  const Request second = another_choice(2, first, 6);
  ASSERT_TRUE(h.scheduler.submit(first).is_ok());
  ASSERT_TRUE(h.scheduler.submit(second).is_ok());
  h.plan();
  h.cluster.begin_epoch(2);
  EXPECT_EQ(h.scheduler.begin_epoch(2, "lost").size(), 1U);
  h.drain();
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(second, 256).tokens);
}

TEST(SchedulerRecurrentState, EveryPromptIsComputedFromItsStart) {
  SchedulerOptions options = Harness::small_options();
  options.recurrent_state = true;
  Harness h(options);
  const Request first = Harness::request(1, 33, 6);
  EXPECT_EQ(cached_pages_of(h, 1, first.prompt), 0U);
  const Request choice = another_choice(2, first, 6);
  ASSERT_TRUE(h.scheduler.submit(choice).is_ok());
  const auto beside = h.plan();
  ASSERT_EQ(opens_of(*beside).count(2), 1U) << "nothing to wait for";
  EXPECT_FALSE(opens_of(*beside).at(2).copy_page);
  EXPECT_EQ(pieces_of(*beside).at(0).second.start_position, 0U);
  h.commit_all();
  EXPECT_EQ(cached_pages_of(h, 3, first.prompt), 0U) << "committed, but without its state";
  h.drain();
  EXPECT_EQ(h.scheduler.stats().prompt_tokens_computed, 3U * 33U);
  EXPECT_EQ(h.tokens[2], FakeCluster::reference(choice, 256).tokens);
  EXPECT_EQ(h.free_pages(), 64U);
}

TEST(SchedulerPrefixCache, ASaltSeparatesTenants) {
  Harness h(Harness::small_options());
  const auto prompt = Harness::request(1, 33, 1).prompt;
  cached_pages_of(h, 1, prompt, "alice");
  h.commit_all();
  EXPECT_EQ(cached_pages_of(h, 2, prompt, "brian"), 0U);
  EXPECT_EQ(cached_pages_of(h, 3, prompt, ""), 0U);
  EXPECT_EQ(cached_pages_of(h, 4, prompt, "alice"), 4U);
  h.drain();
}

TEST(SchedulerPrefixCache, TheKeyIsTheWholeChain) {
  Harness h(Harness::small_options());
  auto prompt = Harness::request(1, 33, 1).prompt;
  cached_pages_of(h, 1, prompt);
  h.commit_all();
  prompt[9] = (prompt[9] + 1) % 64;  // in the second block
  EXPECT_EQ(cached_pages_of(h, 2, prompt), 1U);
  h.drain();
}

TEST(SchedulerPrefixCache, OutputOfAFinishedSequenceIsFoundByTheNextTurn) {
  Harness h(Harness::small_options());
  ASSERT_TRUE(h.submit(1, 10, 23).is_ok());
  h.drain();
  EXPECT_EQ(h.scheduler.stats().cached_pages[0], 4U) << "10 + 22 tokens were fed";
  std::vector<TokenId> turn = Harness::request(1, 10, 1).prompt;
  turn.insert(turn.end(), h.tokens[1].begin(), h.tokens[1].end());
  EXPECT_EQ(cached_pages_of(h, 2, turn), 4U);
  h.drain();
}

TEST(SchedulerPrefixCache, SharedPagesOutliveTheirFirstOwner) {
  Harness h(Harness::small_options());
  const auto prompt = Harness::request(1, 33, 1).prompt;
  cached_pages_of(h, 1, prompt);
  h.commit_all();
  ASSERT_EQ(cached_pages_of(h, 2, prompt), 4U);
  h.scheduler.abort(1);
  h.commit_all();
  EXPECT_EQ(h.scheduler.stats().cached_pages[0], 0U) << "request 2 holds them";
  h.drain();
  EXPECT_EQ(h.scheduler.stats().cached_pages[0], 4U);
  EXPECT_EQ(h.free_pages(), 60U);
}

TEST(SchedulerPrefixCache, TheOldestUnusedBlocksMakeRoom) {
  SchedulerOptions options = Harness::small_options();
  options.pages_per_server = 10;
  Harness h(options);
  const auto a = Harness::request(1, 25, 1).prompt;
  const auto b = Harness::request(2, 25, 1).prompt;
  cached_pages_of(h, 1, a);
  h.drain();
  cached_pages_of(h, 2, b);
  h.drain();
  EXPECT_EQ(h.scheduler.stats().cached_pages[0], 6U);
  ASSERT_TRUE(h.submit(3, 41, 2).is_ok());  // six pages, four are free
  h.drain();
  EXPECT_EQ(cached_pages_of(h, 4, b), 3U);
  h.drain();
  EXPECT_LT(cached_pages_of(h, 5, a), 3U) << "a was used less recently";
  h.drain();
}

/// Two to four sequences that outgrow a small pool; commits as late as the credit allows.
struct Squeeze {
  explicit Squeeze(std::uint32_t pages, std::uint32_t plan_ahead = 2)
      : h([&] {
          SchedulerOptions options = Harness::small_options();
          options.pages_per_server = pages;
          options.page_size = 4;
          options.plan_ahead = plan_ahead;
          options.prefix_cache = false;
          return options;
        }()) {}

  void submit(RequestId id, std::uint32_t max_tokens, std::int32_t priority = 0,
              float penalty = 0.0F) {
    Request request = Harness::request(id, 8, max_tokens);
    request.priority = priority;
    request.sampling.presence_penalty = penalty;
    requests[id] = request;
    ASSERT_TRUE(h.scheduler.submit(request).is_ok());
  }

  void step() {
    std::optional<StepPlan> plan;
    while ((plan = h.plan())) {
      for (const auto& [id, open] : opens_of(*plan)) {
        opens[id].push_back(open);
        if (opens[id].size() > 1) {
          preempted.push_back(id);
          tokens_at_reopen[id] = h.tokens[id];
        }
      }
    }
    h.commit(0, 0);
  }

  void drain() {
    for (int i = 0; i < 2000 && !h.scheduler.idle(); ++i) {
      step();
    }
    ASSERT_TRUE(h.scheduler.idle());
    for (const auto& [id, request] : requests) {
      EXPECT_EQ(h.tokens[id], FakeCluster::reference(request, 256).tokens) << "request " << id;
    }
  }

  Harness h;
  std::map<RequestId, Request> requests;
  std::map<RequestId, std::vector<SlotOpen>> opens;
  std::vector<RequestId> preempted;  ///< in the order of their return
  std::map<RequestId, std::vector<TokenId>> tokens_at_reopen;
};

TEST(SchedulerPreemption, TheLatestArrivalGoesAndNothingIsLost) {
  Squeeze s(14);
  s.submit(1, 30);
  s.submit(2, 30);
  s.drain();
  ASSERT_FALSE(s.preempted.empty());
  for (const RequestId id : s.preempted) {
    EXPECT_EQ(id, 2U) << "the oldest is never preempted";
  }
  EXPECT_EQ(s.h.scheduler.stats().preemptions, s.preempted.size());
}

TEST(SchedulerPreemption, LowestPriorityFirst) {
  Squeeze s(16);
  s.submit(1, 30, 0);
  s.submit(2, 20, 0);
  s.submit(3, 20, 1);
  s.drain();
  ASSERT_FALSE(s.preempted.empty());
  EXPECT_EQ(s.preempted.front(), 2U);
}

TEST(SchedulerPreemption, TheOldestStaysWhateverItsPriority) {
  Squeeze s(14);
  s.submit(1, 30, -5);
  s.submit(2, 30, 5);
  s.step();
  s.drain();
  ASSERT_FALSE(s.preempted.empty());
  // 2 runs first by priority, but 1 came first.
  EXPECT_EQ(std::set<RequestId>(s.preempted.begin(), s.preempted.end()), std::set<RequestId>{2});
}

TEST(SchedulerPreemption, OnePreemptedIsNoVictimOfALaterArrival) {
  Squeeze s(30);
  s.submit(1, 100, 5);
  s.submit(2, 40, 5);
  s.submit(3, 80, 0);
  for (int i = 0; i < 400 && s.preempted.empty(); ++i) {
    s.step();
  }
  ASSERT_EQ(s.preempted, std::vector<RequestId>{3}) << "2 ended and 3 came back";
  s.submit(4, 60, 9);  // later, though of higher priority
  for (int i = 0; i < 400 && s.preempted.size() < 2; ++i) {
    s.step();
  }
  ASSERT_EQ(s.preempted.size(), 2U);
  EXPECT_EQ(s.preempted.back(), 4U) << "3 has been a victim before and came earlier";
  s.drain();
}

TEST(SchedulerPreemption, TokensInFlightJoinTheRecomputedPrompt) {
  Squeeze s(14, 3);
  s.submit(1, 30);
  s.submit(2, 30, 0, 1.0F);
  s.drain();
  ASSERT_FALSE(s.preempted.empty());
  const SlotOpen& again = s.opens[2][1];
  EXPECT_EQ(again.prompt_len, 8U) << "the client's prompt";
  EXPECT_EQ(again.output_tokens, s.tokens_at_reopen[2]) << "for the penalties";
  EXPECT_FALSE(again.output_tokens.empty());
  EXPECT_TRUE(s.opens[1][0].output_tokens.empty());
  EXPECT_TRUE(again.prompt_tokens.empty()) << "no repetition penalty";
}

TEST(SchedulerPlan, RepetitionPenaltiesBringTheDistinctTokensOfThePrompt) {
  Harness h(Harness::small_options());
  Request request = Harness::request(1, 5, 4);
  request.prompt = {7, 3, 7, 9, 3};
  request.sampling.repetition_penalty = 1.1F;
  ASSERT_TRUE(h.scheduler.submit(request).is_ok());
  const auto plan = h.plan();
  ASSERT_TRUE(plan);
  const auto opens = opens_of(*plan);
  EXPECT_EQ(opens.at(1).prompt_tokens, (std::vector<TokenId>{3, 7, 9}));
  h.drain();
}

/// Preemption looks as many steps ahead as pages take to come back, so no plan has to wait.
TEST(SchedulerPreemption, IsPlannedBeforeThePagesAreNeeded) {
  for (std::uint32_t plan_ahead = 1; plan_ahead <= 3; ++plan_ahead) {
    Squeeze s(15, plan_ahead);
    s.submit(1, 40);
    s.submit(2, 40);
    s.submit(3, 40);
    std::uint32_t in_flight = 0;
    while (s.h.scheduler.stats().preemptions == 0 || in_flight > 0) {
      if (in_flight > plan_ahead) {
        s.h.commit(0, 0);
        --in_flight;
      }
      ASSERT_TRUE(s.h.plan()) << "the planner has credit and waits for pages";
      ++in_flight;
      if (s.h.scheduler.stats().preemptions > 0 && s.h.scheduler.stats().steps_committed > 30) {
        break;
      }
    }
    s.h.drain();
  }
}

TEST(SchedulerPreemption, AbortWhileTheVictimsTokensAreInFlight) {
  Squeeze s(14);
  s.submit(1, 30);
  s.submit(2, 30);
  while (s.h.scheduler.stats().preemptions == 0) {
    if (!s.h.plan()) {
      s.h.commit(0, 0);
    }
  }
  s.h.scheduler.abort(2);
  s.requests.erase(2);
  const std::size_t received = s.h.tokens[2].size();
  s.drain();
  EXPECT_EQ(s.h.tokens[2].size(), received);
  EXPECT_EQ(s.h.free_pages(), 14U);
}

}  // namespace
}  // namespace fastfd::scheduler
