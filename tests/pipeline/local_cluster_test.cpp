// Whole clusters in one process: what sanitizers watch.

#include "fastfd/cluster/local_cluster.h"

#include <gtest/gtest.h>

#include <thread>

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
    fastfd::testing::Collector collector;
    std::vector<RequestId> ids;
    for (std::size_t i = first; i < first + count; ++i) {
      auto request = make_request(golden_.prompts[i]);
      ids.push_back(request.id);
      EXPECT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    EXPECT_TRUE(collector.wait_finished(count, kPatience));
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
  start(make_config(2, 2), {.colocated = false, .grpc = true});
  expect_golden(12);
}

TEST_F(LocalClusterTest, CoLocatedRolesGiveTheSame) {
  start(make_config(1, 1), {.colocated = true, .grpc = false});
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

}  // namespace
}  // namespace fastfd::cluster
