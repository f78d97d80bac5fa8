// Whole clusters in one process: what sanitizers watch.

#include "fastfd/cluster/local_cluster.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "kernels/sampling/op.h"
#include "support/collector.h"
#include "support/golden.h"

namespace fastfd::cluster {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 300s;  // of a loaded machine or a sanitizer

config::ClusterConfig make_config(std::uint32_t attention_servers, std::uint32_t ffn_servers) {
  config::ClusterConfig config;
  config.model.path = std::filesystem::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe";
  config.model.precision = Precision::kFloat32;
  config.model.max_model_len = 768;
  config.attention.servers = attention_servers;
  config.attention.kv_cache.dtype = DType::kFloat32;
  config.attention.kv_cache.pages = 256;
  config.ffn.servers = ffn_servers;
  config.transport.kind = config::TransportKind::kInproc;
  config.transport.spin_us = 0;
  config.scheduler.microbatches = 2;
  config.scheduler.max_sequences = 32;
  return config;
}

class LocalClusterTest : public ::testing::Test {
 protected:
  void start(const config::ClusterConfig& config, const LocalClusterOptions& options = {}) {
    const Blueprint blueprint(config);
    cluster_ = std::make_unique<LocalCluster>(blueprint, load_cluster_weights(blueprint), options);
    ASSERT_TRUE(cluster_->wait_ready(kPatience)) << cluster_->engine().state().detail;
  }

  Request make_request(const fastfd::testing::GoldenPrompt& prompt) {
    Request request;
    request.id = cluster_->engine().next_request_id();
    request.prompt = prompt.prompt_ids;
    request.max_tokens = 16;
    request.sampling.temperature = 0.0F;
    request.sampling.num_logprobs = 5;
    request.sampling.stop_token_ids = golden_.stop_ids;
    request.arrival = std::chrono::steady_clock::now();
    return request;
  }

  std::vector<fastfd::testing::Collector::Answer> run(std::size_t first, std::size_t count) {
    std::vector<Request> requests;
    for (std::size_t i = first; i < first + count; ++i) {
      requests.push_back(make_request(golden_.prompts[i]));
    }
    return run(std::move(requests));
  }

  // All at once.
  std::vector<fastfd::testing::Collector::Answer> run(std::vector<Request> requests) {
    fastfd::testing::Collector collector;
    std::vector<RequestId> ids;
    for (Request& request : requests) {
      ids.push_back(request.id);
      EXPECT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    EXPECT_TRUE(collector.wait_finished(ids.size(), kPatience));
    std::vector<fastfd::testing::Collector::Answer> answers;
    for (const RequestId id : ids) {
      answers.push_back(collector.take(id));
    }
    return answers;
  }

  void expect_golden(std::size_t count) {
    const auto answers = run(0, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& expected = golden_.prompts[i].output_ids;
      const std::size_t length = std::min<std::size_t>(expected.size(), 16);
      ASSERT_EQ(answers[i].tokens.size(), length) << golden_.prompts[i].id;
      for (std::size_t t = 0; t < length; ++t) {
        EXPECT_EQ(answers[i].tokens[t].token, expected[t]) << golden_.prompts[i].id;
      }
    }
  }

  bool wait_idle() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (cluster_->metric("fastfd_running_requests") > 0 ||
           cluster_->metric("fastfd_kv_free_pages") + cluster_->metric("fastfd_kv_cached_pages") <
               num_pages_) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

  const fastfd::testing::Golden golden_ = fastfd::testing::load_golden(
      std::filesystem::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe");
  std::unique_ptr<LocalCluster> cluster_;
  double num_pages_ = 0.0;
};

TEST_F(LocalClusterTest, MembersByDirectCallsGiveTheTokensOfTransformers) {
  start(make_config(2, 3));
  expect_golden(12);
}

TEST_F(LocalClusterTest, MembersOverGrpcGiveTheSame) {
  start(make_config(2, 2), {.grpc = true});
  expect_golden(12);
}

TEST_F(LocalClusterTest, CoLocatedRolesGiveTheSame) {
  start(config::as_colocated(make_config(1, 1)));
  expect_golden(12);
}

TEST_F(LocalClusterTest, CoLocatedRolesThatShareTheirWorkersGiveTheSame) {
  auto config = config::as_colocated(make_config(1, 1));
  config.attention.threads = 2;
  config.ffn.threads = 3;  // the rank has as many as the half with more
  EXPECT_EQ(config.num_computing_threads(), 3U);
  start(config);
  expect_golden(12);
}

TEST_F(LocalClusterTest, SeveralThreadsAServerGiveTheSame) {
  auto config = make_config(1, 1);
  config.attention.threads = 2;
  config.ffn.threads = 2;
  start(config);
  expect_golden(12);
}

// To the last bit: sums never depend on who else is in the batch.
TEST_F(LocalClusterTest, LogitsDoNotDependOnWhoSharesTheBatch) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    auto config = make_config(1, 2);
    config.model.precision = precision;
    config.attention.kv_cache.prefix_cache = false;
    start(config);
    const auto together = run(0, 20);
    for (std::size_t i = 0; i < 20; i += 5) {
      const auto alone = run(i, 1)[0];
      ASSERT_EQ(alone.tokens.size(), together[i].tokens.size());
      for (std::size_t t = 0; t < alone.tokens.size(); ++t) {
        EXPECT_EQ(alone.tokens[t].token, together[i].tokens[t].token);
        EXPECT_EQ(alone.tokens[t].top_logprobs, together[i].tokens[t].top_logprobs)
            << golden_.prompts[i].id << " position " << t << " in " << to_string(precision);
      }
    }
  }
}

// The prompt is computed once; each choice goes on in its own copy of the partial page.
TEST_F(LocalClusterTest, ChoicesThatShareAPromptGetTheTokensTheyWouldGetAlone) {
  auto config = make_config(1, 2);
  config.attention.kv_cache.prefix_cache = false;
  start(config);
  const auto& prompt = golden_.prompts[24];
  ASSERT_NE((prompt.prompt_ids.size() - 1) % config.attention.kv_cache.page_size, 0U);
  const auto run_choices = [&](bool shared) {
    fastfd::testing::Collector collector;
    std::vector<RequestId> ids;
    for (std::uint64_t choice = 0; choice < 4; ++choice) {
      auto request = make_request(prompt);
      request.sampling.temperature = 4.0F;
      request.sampling.seed = choice;
      request.sampling.ignore_eos = true;
      request.fork_of = shared && choice > 0 ? ids[0] : 0;
      ids.push_back(request.id);
      EXPECT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    EXPECT_TRUE(collector.wait_finished(ids.size(), kPatience));
    std::vector<std::vector<TokenId>> tokens;
    for (const RequestId id : ids) {
      auto& answer = tokens.emplace_back();
      for (const auto& event : collector.take(id).tokens) {
        answer.push_back(event.token);
      }
    }
    return tokens;
  };
  const auto alone = run_choices(false);
  const double computed = cluster_->metric("fastfd_prompt_tokens_computed_total");
  EXPECT_EQ(cluster_->metric("fastfd_kv_pages_copied_total"), 0.0);
  const auto shared = run_choices(true);
  EXPECT_EQ(shared, alone);
  EXPECT_NE(shared[0], shared[1]);
  EXPECT_EQ(cluster_->metric("fastfd_kv_pages_copied_total"), 3.0);
  EXPECT_EQ(cluster_->metric("fastfd_prompt_tokens_computed_total") - computed,
            static_cast<double>(prompt.prompt_ids.size()) + 3.0);
}

// FAULTS 29: a draw is a function of (seed, position) and of what was said so far.
class SampledTest : public LocalClusterTest {
 protected:
  static constexpr std::size_t kNumRequests = 12;
  static constexpr std::int32_t kTopK = 5;

  // Every third without penalties, whose counts a recompute must rebuild.
  Request sampled_request(std::size_t index) {
    Request request = make_request(golden_.prompts[index]);
    request.max_tokens = 96;
    request.sampling.temperature = 1.3F;
    request.sampling.top_k = kTopK;
    request.sampling.seed = 1000 + index;
    request.sampling.num_logprobs = 20;
    request.sampling.ignore_eos = true;
    if (index % 3 != 0) {
      request.sampling.presence_penalty = 0.4F;
      request.sampling.frequency_penalty = 0.7F;
    }
    if (index % 3 == 2) {
      request.sampling.repetition_penalty = 1.1F;
    }
    return request;
  }

  // Draws every token again, by the reference, from the log-probabilities that were reported with
  // it. Returns how many could be.
  std::size_t expect_draws(const Request& request,
                           const fastfd::testing::Collector::Answer& answer) {
    std::size_t num_drawn = 0;
    SamplingParams params = request.sampling;
    params.num_logprobs = -1;
    // Of log-probabilities, which are all negative, a repetition penalty makes something else than
    // of the logits that the sampler saw: these draws can't be repeated here.
    if (params.repetition_penalty != 1.0F) {
      return 0;
    }
    kernels::TokenCounts counts;
    for (std::size_t i = 0; i < answer.tokens.size(); ++i) {
      const TokenEvent& event = answer.tokens[i];
      std::vector<float> logits(vocab_size_, -std::numeric_limits<float>::infinity());
      for (const TokenLogprob& top : event.top_logprobs) {
        logits[static_cast<std::size_t>(top.token)] = top.logprob;
      }
      if (keeps_only_reported_tokens(params, counts, event)) {
        ++num_drawn;
        kernels::SamplingOutput output;
        const kernels::SamplingRow row{
            .logits = logits.data(),
            .params = &params,
            .counts = params.has_penalties() ? &counts : nullptr,
            .position = static_cast<std::uint32_t>(request.prompt.size() + i),
            .num_generated = static_cast<std::uint32_t>(i)};
        kernels::reference_sampling({&row, 1}, static_cast<std::int64_t>(logits.size()),
                                    {&output, 1});
        EXPECT_EQ(event.token, output.token) << "token " << i << " of " << answer.tokens.size();
      }
      ++count_of(counts, event.token);
    }
    return num_drawn;
  }

  static std::uint32_t& count_of(kernels::TokenCounts& counts, TokenId token) {
    for (auto& [counted, number] : counts) {
      if (counted == token) {
        return number;
      }
    }
    return counts.emplace_back(token, 0).second;
  }

  // Whether the top_k likeliest after the penalties are surely among the tokens reported before
  // them: enough of those must stay above the last.
  static bool keeps_only_reported_tokens(const SamplingParams& params, kernels::TokenCounts counts,
                                         const TokenEvent& event) {
    if (!params.has_penalties()) {
      return true;
    }
    const float last = event.top_logprobs.back().logprob;
    std::int32_t num_above = 0;
    for (const TokenLogprob& top : event.top_logprobs) {
      const std::uint32_t number = count_of(counts, top.token);
      const float penalty = number == 0 ? 0.0F
                                        : params.presence_penalty +
                                              params.frequency_penalty * static_cast<float>(number);
      num_above += top.logprob - penalty > last ? 1 : 0;
    }
    return num_above >= params.top_k;
  }

  std::size_t vocab_size_ = 0;
};

TEST_F(SampledTest, PreemptedSequencesDrawTheSameTokens) {
  auto config = make_config(1, 2);
  // Just the longest sequence, in pages so small that a continuation takes many.
  config.attention.kv_cache.page_size = 4;
  config.attention.kv_cache.pages = config.model.max_model_len / 4;
  config.attention.kv_cache.prefix_cache = false;
  vocab_size_ = Blueprint(config).spec().vocab_size;
  start(config);

  std::vector<fastfd::testing::Collector::Answer> alone;
  std::vector<Request> requests;
  std::size_t num_drawn = 0;
  for (std::size_t i = 0; i < kNumRequests; ++i) {
    const Request request = sampled_request(i);
    alone.push_back(run({request})[0]);
    ASSERT_EQ(alone[i].tokens.size(), request.max_tokens) << alone[i].error;
    num_drawn += expect_draws(request, alone[i]);
    requests.push_back(sampled_request(i));
  }
  EXPECT_GE(num_drawn, kNumRequests * 96 / 3);
  ASSERT_EQ(cluster_->metric("fastfd_preemptions_total"), 0.0);

  const auto together = run(std::move(requests));
  EXPECT_GT(cluster_->metric("fastfd_preemptions_total"), 0.0);
  for (std::size_t i = 0; i < kNumRequests; ++i) {
    ASSERT_EQ(together[i].tokens.size(), alone[i].tokens.size()) << together[i].error;
    for (std::size_t t = 0; t < alone[i].tokens.size(); ++t) {
      ASSERT_EQ(together[i].tokens[t].token, alone[i].tokens[t].token)
          << golden_.prompts[i].id << " token " << t;
    }
  }
}

TEST_F(LocalClusterTest, AbortedRequestsGiveTheirPagesBackAndDisturbNobody) {
  start(make_config(2, 2));
  num_pages_ = 2 * 256;
  fastfd::testing::Collector collector;
  std::vector<RequestId> aborted;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 8; ++i) {
      auto request = make_request(golden_.prompts[i]);
      request.max_tokens = 200;
      request.sampling.ignore_eos = true;
      aborted.push_back(request.id);
      ASSERT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    // At once, in the queue or its first chunk; or in mid-decode.
    if (round > 0) {
      EXPECT_TRUE(collector.wait_token(aborted.back(), kPatience));
    }
    for (const RequestId id : aborted) {
      cluster_->engine().abort(id);
    }
    expect_golden(6);
  }
  EXPECT_TRUE(wait_idle());
}

// Processor time of this process, which no other on the machine adds to.
double used_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Threads of this process that run or wait for a processor, without the caller.
std::set<std::string> runnable_threads() {
  std::set<std::string> found;
  const std::string own = std::to_string(gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const std::size_t state = stat.rfind(") ");
    if (task.path().filename() != own && state != std::string::npos && stat[state + 2] == 'R') {
      found.insert(stat.substr(0, state + 1));
    }
  }
  return found;
}

// PROTOCOL 3, no plan, no wait. Where other processes leave a thread that spins little processor
// time, it shows by never sleeping.
TEST_F(LocalClusterTest, WithoutPlansNothingSpins) {
  for (const bool grpc : {false, true}) {
    auto config = make_config(2, 2);
    config.transport.spin_us = 50;
    start(config, {.grpc = grpc});
    num_pages_ = 2 * 256;
    expect_golden(4);
    ASSERT_TRUE(wait_idle());
    std::this_thread::sleep_for(100ms);  // the last reports are on their way
    const double before = used_seconds();
    const auto until = std::chrono::steady_clock::now() + 1s;
    std::map<std::string, int> times_runnable;
    int num_looks = 0;
    for (; num_looks < 20 || std::chrono::steady_clock::now() < until; ++num_looks) {
      std::this_thread::sleep_for(20ms);
      for (const std::string& thread : runnable_threads()) {
        ++times_runnable[thread];
      }
    }
    EXPECT_LT(used_seconds() - before, 0.1) << (grpc ? "over gRPC" : "by direct calls");
    for (const auto& [thread, times] : times_runnable) {
      EXPECT_LE(times, num_looks / 2) << thread << " of " << num_looks << " looks";
    }
    expect_golden(4);
  }
}

}  // namespace
}  // namespace fastfd::cluster
