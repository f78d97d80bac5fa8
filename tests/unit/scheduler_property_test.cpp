// Random clusters, arrivals, ends, aborts and delays against the rules of PROTOCOL 1-3. The fake
// cluster checks every plan and every page access; here the outputs and the books are checked.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fastfd/scheduler/scheduler.h"
#include "support/fake_cluster.h"

namespace fastfd::scheduler {
namespace {

using fastfd::testing::ExpectedOutput;
using fastfd::testing::FakeCluster;

struct Client {
  Request request;
  ExpectedOutput expected;
  std::vector<TokenId> received;
  bool submitted = false;
  bool aborted = false;
  bool finished = false;
  bool always_oldest = false;  ///< nobody older was unfinished when it was first opened
  int opens = 0;
};

class Simulation {
 public:
  Simulation(const SchedulerOptions& options, std::uint64_t seed, std::uint32_t num_requests)
      : options_(options), random_(seed), scheduler_(options), cluster_(options, seed + 1) {
    make_clients(num_requests);
  }

  void run() {
    // Relative rates, drawn once: some runs commit late, some early, some bring all at once.
    const std::array<std::uint64_t, 5> weights = {
        1 + random_() % 8, random_() % 2, 1 + random_() % 8, 1 + random_() % 8, 1 + random_() % 8};
    std::discrete_distribution<int> action(weights.begin(), weights.end());
    for (int i = 0; i < 2'000'000; ++i) {
      if (next_client_ == clients_.size() && scheduler_.idle()) {
        return check_end();
      }
      switch (action(random_)) {
        case 0:
          submit_next();
          break;
        case 1:
          abort_some();
          break;
        case 2:
          plan();
          break;
        case 3:
          cluster_.run_one();
          report_ffn_load();
          break;
        default:
          deliver();
      }
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
    FAIL() << "requests do not end";
  }

  const SchedulerStats& final_stats() const { return final_stats_; }

 private:
  std::uint32_t draw(std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(random_() % (high - low + 1));
  }

  void make_clients(std::uint32_t count) {
    const std::uint32_t pool_tokens = options_.pages_per_server * options_.page_size;
    const std::uint32_t longest = std::min(options_.max_model_len, pool_tokens + 1);
    std::vector<TokenId> shared(longest);
    for (TokenId& token : shared) {
      token = static_cast<TokenId>(draw(0, FakeCluster::kVocabulary - 1));
    }
    const std::uint32_t max_prompt = draw(1, longest - 1);
    const std::uint32_t max_output = draw(0, 3) == 0 ? 200 : draw(1, 40);
    for (std::uint32_t i = 0; i < count; ++i) {
      Client client;
      Request& request = client.request;
      request.id = i + 1;
      const std::uint32_t length = draw(1, max_prompt);
      request.prompt.assign(shared.begin(), shared.begin() + length);
      if (draw(0, 2) == 0) {  // leaves the shared prefix somewhere
        request.prompt[draw(0, length - 1)] = static_cast<TokenId>(draw(0, 63));
      }
      request.priority = static_cast<std::int32_t>(draw(0, 2));
      request.cache_salt = draw(0, 3) == 0 ? "tenant" : "";
      if (i > 0 && draw(0, 3) == 0) {  // another choice of the one before, perhaps of its choice
        const Request& other = clients_.back().request;
        request.prompt = other.prompt;
        request.cache_salt = other.cache_salt;
        request.priority = other.priority;
        request.fork_of = other.fork_of != 0 ? other.fork_of : other.id;
      }
      request.max_tokens = std::min(draw(1, max_output),
                                    longest - static_cast<std::uint32_t>(request.prompt.size()));
      // The seed names the request in every SlotOpen.
      request.sampling.seed = request.id;
      request.sampling.ignore_eos = draw(0, 5) == 0;
      request.sampling.min_tokens = draw(0, 3) == 0 ? draw(0, 10) : 0;
      request.sampling.presence_penalty = draw(0, 3) == 0 ? 1.0F : 0.0F;
      for (std::uint32_t n = draw(0, 4); n > 0; --n) {
        request.sampling.stop_token_ids.push_back(static_cast<TokenId>(draw(0, 63)));
      }
      client.expected = FakeCluster::reference(request, options_.max_model_len);
      clients_.push_back(std::move(client));
    }
  }

  void submit_next() {
    if (next_client_ == clients_.size()) {
      return;
    }
    Client& client = clients_[next_client_];
    const Status status = scheduler_.submit(client.request);
    if (status.code() == StatusCode::kResourceExhausted) {
      return;
    }
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    client.submitted = true;
    ++next_client_;
  }

  void abort_some() {
    if (next_client_ == 0 || draw(0, 9) != 0) {
      return;
    }
    Client& client = clients_[random_() % next_client_];
    scheduler_.abort(client.request.id);
    client.aborted = client.aborted || !client.finished;
    EXPECT_FALSE(scheduler_.has_request(client.request.id));
  }

  void plan() {
    const auto plan = scheduler_.plan();
    if (!plan) {
      return;
    }
    cluster_.publish(*plan);
    for (const auto& [rank, server] : plan->attention) {
      for (const AttentionLanePlan& lane : server.lanes) {
        for (const SlotOpen& open : lane.opens) {
          note_open(clients_[open.sampling.seed - 1], open);
        }
      }
    }
  }

  void note_open(Client& client, const SlotOpen& open) {
    ASSERT_FALSE(client.finished || client.aborted) << "an ended request is opened";
    ASSERT_EQ(open.prompt_len, client.request.prompt.size());
    ASSERT_LT(open.cached_pages.size() * options_.page_size,
              client.request.prompt.size() + client.received.size());
    if (client.request.sampling.has_penalties()) {
      ASSERT_EQ(open.output_tokens, client.received);
    }
    ASSERT_FALSE(client.always_oldest) << "the oldest sequence was preempted";
    if (client.opens++ == 0) {
      client.always_oldest =
          std::all_of(clients_.begin(), clients_.begin() + (&client - clients_.data()),
                      [](const Client& other) { return other.finished || other.aborted; });
    }
  }

  /// An FFN pool whose speed jumps, so that `auto` changes the number of lanes.
  void report_ffn_load() {
    if (draw(0, 255) == 0) {
      ffn_layer_us_ = draw(0, 1) == 0 ? 1.0 : 500.0;
    }
    const std::uint64_t steps = scheduler_.stats().steps_committed;
    ffn_load_.compute_us += static_cast<double>(steps - ffn_load_.layers_run) * ffn_layer_us_;
    ffn_load_.layers_run = steps;
    scheduler_.observe(ffn_load_);
  }

  void deliver() {
    const auto result = cluster_.deliver_one();
    if (!result) {
      return;
    }
    const auto events = scheduler_.commit(*result);
    if (draw(0, 7) == 0) {
      EXPECT_TRUE(scheduler_.commit(*result).empty()) << "a result counts twice";
    }
    for (const TokenEvent& event : events) {
      Client& client = clients_[event.request - 1];
      ASSERT_FALSE(client.aborted) << "an event after the abort";
      ASSERT_FALSE(client.finished) << "an event after the end";
      client.received.push_back(event.token);
      const std::size_t index = client.received.size() - 1;
      ASSERT_LT(index, client.expected.tokens.size());
      ASSERT_EQ(event.token, client.expected.tokens[index]) << "request " << event.request;
      if (event.finish != FinishReason::kNone) {
        client.finished = true;
        ASSERT_EQ(event.finish, client.expected.finish);
        ASSERT_EQ(client.received.size(), client.expected.tokens.size());
      }
    }
  }

  void check_end() {
    std::uint64_t num_tokens = 0;
    for (const Client& client : clients_) {
      EXPECT_TRUE(client.finished || client.aborted) << "request " << client.request.id;
      num_tokens += client.received.size();
    }
    final_stats_ = scheduler_.stats();
    EXPECT_EQ(final_stats_.tokens_generated, num_tokens);
    EXPECT_EQ(final_stats_.steps_planned, final_stats_.steps_committed);
    EXPECT_EQ(final_stats_.running, 0U);
    EXPECT_EQ(final_stats_.queued, 0U);
    for (ServerRank rank = 0; rank < options_.num_attention_servers; ++rank) {
      EXPECT_EQ(final_stats_.free_pages[rank] + final_stats_.cached_pages[rank],
                options_.pages_per_server)
          << "pages leaked";
      EXPECT_EQ(final_stats_.free_slots[rank], Scheduler::slots_per_server(options_))
          << "slots leaked";
    }
  }

  SchedulerOptions options_;
  std::mt19937_64 random_;
  Scheduler scheduler_;
  FakeCluster cluster_;
  std::vector<Client> clients_;
  std::size_t next_client_ = 0;
  SchedulerStats final_stats_;
  FfnLoad ffn_load_;
  double ffn_layer_us_ = 1.0;
};

SchedulerOptions random_options(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 13);
  const auto draw = [&random](std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(random() % (high - low + 1));
  };
  SchedulerOptions options;
  options.num_attention_servers = draw(1, 4);
  options.page_size = 1U << draw(0, 4);
  options.pages_per_server = draw(2, 60);
  options.max_sequences = draw(1, 24);
  options.max_batched_tokens = draw(1, 64);
  options.prefill_chunk = draw(1, 32);
  options.max_model_len = draw(0, 1) == 0 ? draw(8, 120) : 250;
  options.max_queued_requests = draw(1, 50);
  options.plan_ahead = draw(1, 3);
  options.microbatches = draw(0, 4);
  options.overlapped = draw(0, 4) != 0;
  options.prefix_cache = draw(0, 4) != 0;
  options.use_graphs = draw(0, 1) != 0;
  options.uniform_buckets = draw(0, 3) == 0;
  return options;
}

class SchedulerProperty : public ::testing::TestWithParam<int> {};

TEST_P(SchedulerProperty, RecurrentStatesHoldExactlyTheirSequencesTokens) {
  std::uint64_t preemptions = 0;
  for (int i = 0; i < 20; ++i) {
    const auto seed = static_cast<std::uint64_t>(2000 + GetParam() * 20 + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerOptions options = random_options(seed);
    options.recurrent_state = true;
    Simulation simulation(options, seed, 40);
    simulation.run();
    if (HasFailure()) {
      return;
    }
    preemptions += simulation.final_stats().preemptions;
    EXPECT_EQ(simulation.final_stats().prompt_tokens_cached, 0U);
    EXPECT_EQ(simulation.final_stats().pages_copied, 0U);
  }
  EXPECT_GT(preemptions, 0U);
}

TEST_P(SchedulerProperty, EveryRequestGetsItsTokensAndNothingLeaks) {
  constexpr int kSeedsPerCase = 60;
  std::uint64_t preemptions = 0;
  std::uint64_t cached = 0;
  std::uint64_t copied = 0;
  std::uint64_t dropped = 0;
  for (int i = 0; i < kSeedsPerCase; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerCase + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(random_options(seed), seed, 40);
    simulation.run();
    if (HasFailure()) {
      return;
    }
    preemptions += simulation.final_stats().preemptions;
    cached += simulation.final_stats().prompt_tokens_cached;
    copied += simulation.final_stats().pages_copied;
    dropped += simulation.final_stats().tokens_dropped;
  }
  // The runs must have been hard enough to mean something.
  EXPECT_GT(preemptions, 0U);
  EXPECT_GT(cached, 0U);
  EXPECT_GT(copied, 0U);
  EXPECT_GT(dropped, 0U);
}

/// Long outputs that end one by one leave lanes uneven, and an FFN pool whose speed jumps makes
/// `auto` change their number: rows move while steps are in flight.
TEST_P(SchedulerProperty, RowsMoveBetweenLanesOnlyAtBarriers) {
  std::uint64_t barriers = 0;
  for (int i = 0; i < 20; ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 + GetParam() * 20 + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerOptions options = random_options(seed);
    options.page_size = 8;
    options.pages_per_server = 250;
    options.max_model_len = 300;
    options.max_sequences = 24;
    options.max_batched_tokens = 64;
    options.microbatches = i % 4 == 1 ? 0 : 2 + i % 3;
    options.num_attention_servers = 1 + i % 2;
    Simulation simulation(options, seed, 60);
    simulation.run();
    if (HasFailure()) {
      return;
    }
    barriers += simulation.final_stats().lane_barriers;
  }
  EXPECT_GT(barriers, 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerProperty, ::testing::Range(0, 8));

}  // namespace
}  // namespace fastfd::scheduler
