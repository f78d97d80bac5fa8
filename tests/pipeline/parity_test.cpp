// Every model of tests/reference/models, in float32, on whole clusters of one process: the greedy
// tokens of transformers and its log-probabilities, whatever the topology, lanes, prefill chunk,
// batch and page pool.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/logging.h"
#include "model/architecture.h"
#include "support/collector.h"
#include "support/golden.h"
#include "support/pairwise.h"

namespace fastfd::cluster {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 300s;  // of a loaded machine or a sanitizer
constexpr double kTolerance = 2e-3;

std::filesystem::path models_folder() {
  return std::filesystem::path(FASTFD_SOURCE_DIR) / "tests" / "reference" / "models";
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(models_folder())) {
    if (std::filesystem::exists(entry.path() / "config.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

enum class Pool : std::uint8_t { kAmple, kTiny, kPrefixHits };

struct Setting {
  std::uint32_t attention_servers = 1;
  std::uint32_t ffn_servers = 1;
  std::uint32_t lanes = 1;
  std::uint32_t chunk = 256;
  std::size_t copies = 0;  // of all prompts, at once; 0: one prompt after the other
  Pool pool = Pool::kAmple;

  std::string describe() const {
    constexpr const char* kPools[] = {"an ample pool", "a tiny pool", "prefix hits"};
    return fmt::format("{}A{}F, {} lanes, chunks of {}, {}, {}", attention_servers, ffn_servers,
                       lanes, chunk,
                       copies == 0 ? "one at a time" : fmt::format("{} of each at once", copies),
                       kPools[static_cast<std::size_t>(pool)]);
  }
};

// Every pair of two factors' levels.
std::vector<Setting> settings() {
  constexpr std::pair<std::uint32_t, std::uint32_t> kTopologies[] = {
      {1, 1}, {2, 1}, {1, 3}, {2, 2}};
  std::vector<Setting> settings;
  for (const auto& row : testing::pairwise_rows({4, 2, 2, 2, 3})) {
    settings.push_back({.attention_servers = kTopologies[row[0]].first,
                        .ffn_servers = kTopologies[row[0]].second,
                        .lanes = row[1] == 0 ? 1U : 2U,
                        .chunk = row[2] == 0 ? 5U : 256U,
                        .copies = row[3] == 0 ? 0U : 3U,
                        .pool = static_cast<Pool>(row[4])});
  }
  return settings;
}

config::ClusterConfig make_config(const std::string& model, const Setting& setting) {
  config::ClusterConfig config;
  config.model.path = models_folder() / model;
  config.model.precision = Precision::kFloat32;
  config.model.max_model_len = 160;  // the longest prompt and its answer take 154
  config.attention.servers = setting.attention_servers;
  config.attention.kv_cache.dtype = DType::kFloat32;
  config.attention.kv_cache.page_size = 4;
  config.attention.kv_cache.pages = setting.pool == Pool::kTiny ? 40 : 1024;
  config.attention.kv_cache.prefix_cache = setting.pool == Pool::kPrefixHits;
  config.ffn.servers = setting.ffn_servers;
  config.transport.kind = config::TransportKind::kInproc;
  config.transport.spin_us = 0;
  config.scheduler.microbatches = setting.lanes;
  config.scheduler.prefill_chunk = setting.chunk;
  config.scheduler.max_sequences = 32;
  return config;
}

class ParityTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { init_logging("parity", "warn"); }

  void run(const Setting& setting) {
    const Blueprint blueprint(make_config(GetParam(), setting));
    auto& weights = weights_[setting.ffn_servers];
    if (!weights.attention) {
      weights = load_cluster_weights(blueprint);
    }
    LocalCluster cluster(blueprint, weights);
    ASSERT_TRUE(cluster.wait_ready(kPatience)) << cluster.engine().state().detail;
    if (setting.pool == Pool::kPrefixHits) {
      run_prompts(cluster, 1);  // fills the cache
    }
    if (setting.copies > 0) {
      run_prompts(cluster, setting.copies);
    } else {
      for (const auto& prompt : golden_.prompts) {
        run_batch(cluster, {&prompt});
      }
    }
    if (setting.pool == Pool::kPrefixHits) {
      const double cached = cluster.metric("fastfd_prompt_tokens_cached_total");
      EXPECT_EQ(cached == 0.0, blueprint.spec().has_recurrent_state()) << cached;
    }
    if (setting.pool == Pool::kTiny && setting.copies > 0) {
      EXPECT_GT(cluster.metric("fastfd_preemptions_total"), 0.0);
    }
  }

 private:
  void run_prompts(LocalCluster& cluster, std::size_t copies) {
    std::vector<const testing::GoldenPrompt*> prompts;
    for (std::size_t copy = 0; copy < copies; ++copy) {
      for (const auto& prompt : golden_.prompts) {
        prompts.push_back(&prompt);
      }
    }
    run_batch(cluster, prompts);
  }

  void run_batch(LocalCluster& cluster, const std::vector<const testing::GoldenPrompt*>& prompts) {
    testing::Collector collector;
    std::vector<RequestId> ids;
    for (const auto* prompt : prompts) {
      Request request;
      request.id = cluster.engine().next_request_id();
      request.prompt = prompt->prompt_ids;
      request.max_tokens = golden_.max_new_tokens;
      request.sampling.temperature = 0.0F;
      request.sampling.num_logprobs = 20;
      request.arrival = std::chrono::steady_clock::now();
      ids.push_back(request.id);
      ASSERT_TRUE(cluster.engine().submit(std::move(request), &collector));
    }
    ASSERT_TRUE(collector.wait_finished(ids.size(), kPatience)) << cluster.engine().state().detail;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expect_equal(*prompts[i], collector.take(ids[i]));
    }
  }

  static void expect_equal(const testing::GoldenPrompt& prompt,
                           const testing::Collector::Answer& answer) {
    ASSERT_EQ(answer.tokens.size(), prompt.output_ids.size()) << prompt.id << ' ' << answer.error;
    for (std::size_t i = 0; i < answer.tokens.size(); ++i) {
      const TokenEvent& event = answer.tokens[i];
      const std::string where = fmt::format("{}, position {}", prompt.id, i);
      ASSERT_EQ(event.token, prompt.output_ids[i]) << where;
      for (const TokenLogprob& expected : prompt.top[i]) {
        const auto at = std::ranges::find(event.top_logprobs, expected.token, &TokenLogprob::token);
        if (at == event.top_logprobs.end()) {
          // The twentieth may change places with the next.
          EXPECT_NEAR(expected.logprob, event.top_logprobs.back().logprob, 2 * kTolerance) << where;
        } else {
          ASSERT_NEAR(at->logprob, expected.logprob, kTolerance)
              << where << ", token " << expected.token;
        }
      }
    }
  }

  const testing::Golden golden_ = testing::load_golden(models_folder() / GetParam());
  std::map<std::uint32_t, ClusterWeights> weights_;  // by number of FFN servers
};

TEST_P(ParityTest, GivesTheTokensOfTransformers) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.describe());
    run(setting);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// What nobody tests is not served.
TEST(ParityModelsTest, EveryArchitectureHasAModelHere) {
  std::set<std::string> tested;
  for (const std::string& name : model_names()) {
    tested.insert(Blueprint(make_config(name, {})).spec().architecture);
  }
  for (const std::string& architecture : model::ArchitectureRegistry::builtin().names()) {
    EXPECT_TRUE(tested.contains(architecture))
        << architecture << ": add a model to tests/reference/models/specs.py";
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ParityTest, ::testing::ValuesIn(model_names()), test_name);

}  // namespace
}  // namespace fastfd::cluster
