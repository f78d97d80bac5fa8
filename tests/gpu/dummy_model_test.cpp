// Whole clusters on the GPU against whole clusters on the CPU, on models of random weights whose
// shapes are those of real ones: head_dim 128, many experts, wide rows.
//
// Random weights leave small gaps between the likeliest tokens, and experts that are chosen by
// hair's breadth: tokens alone would say little. So log-probabilities are compared as long as the
// tokens before them are equal, and what rounding does to them is measured on the CPU as well,
// between float32 and bf16 activations.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/logging.h"
#include "fastfd/device/cuda.h"
#include "support/collector.h"
#include "support/tiny_checkpoint.h"

namespace fastfd {
namespace {

using namespace std::chrono_literals;
using Answers = std::vector<testing::Collector::Answer>;

constexpr std::uint32_t kOutputLen = 16;

test::TinyCheckpointOptions qwen_shape() {
  test::TinyCheckpointOptions shape;
  shape.vocab_size = 4096;
  shape.hidden_dim = 1024;
  shape.num_layers = 4;
  shape.num_q_heads = 16;
  shape.num_kv_heads = 2;
  shape.head_dim = 128;
  shape.num_experts = 64;
  shape.experts_per_token = 8;
  shape.expert_intermediate_dim = 768;
  shape.max_positions = 512;
  return shape;
}

nlohmann::json config_of(const test::TinyCheckpointOptions& shape,
                         const nlohmann::json& patch = nlohmann::json::object()) {
  nlohmann::json config = nlohmann::json::parse(test::make_tiny_config(shape));
  config.merge_patch(patch);
  return config;
}

/// MiniMax-M2.5's rows, experts and query heads a KV head, in fewer of them.
test::TinyCheckpointOptions minimax_shape() {
  test::TinyCheckpointOptions shape = qwen_shape();
  shape.hidden_dim = 3072;
  shape.num_layers = 2;
  shape.num_q_heads = 12;
  shape.num_kv_heads = 2;
  shape.expert_intermediate_dim = 1536;
  return shape;
}

/// Pieces, pages and chunks of many lengths.
std::vector<std::vector<TokenId>> make_prompts(std::uint32_t vocab_size) {
  std::mt19937 random(1);
  std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(vocab_size) - 1);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::size_t length : {1, 2, 7, 16, 17, 33, 64, 100, 129}) {
    auto& prompt = prompts.emplace_back();
    while (prompt.size() < length) {
      prompt.push_back(token(random));
    }
  }
  return prompts;
}

/// How one cluster's answers differ from the reference's.
struct Difference {
  std::size_t num_tokens = 0;
  std::size_t num_equal = 0;  // at the same place, whatever came before
  std::size_t num_compared = 0;
  double sum = 0.0;
  double worst = 0.0;
  double worst_first = 0.0;  // of the prompts' first tokens
  // The reference's lead where the other chose another token: anywhere, and for first tokens.
  double widest_flip = 0.0;
  double widest_first_flip = 0.0;

  double mean() const { return sum / static_cast<double>(std::max<std::size_t>(num_compared, 1)); }
  std::string describe(const char* name) const {
    return fmt::format(
        "{}: {:.1f}% of {} tokens equal; log-probabilities of {} off by {:.4f} on average, {:.4f} "
        "at most, {:.4f} for first tokens; other choices at leads up to {:.4f}\n",
        name, 100.0 * static_cast<double>(num_equal) / static_cast<double>(num_tokens), num_tokens,
        num_compared, mean(), worst, worst_first, widest_flip);
  }
};

/// Follows the reference's tokens for as long as both had the same before. A token that is not
/// among the other's likeliest 20 counts as off by as much as the last of them.
Difference compare(const Answers& reference, const Answers& other) {
  Difference difference;
  for (std::size_t prompt = 0; prompt < reference.size(); ++prompt) {
    const auto& expected = reference[prompt].tokens;
    const auto& actual = other[prompt].tokens;
    bool same_path = true;
    for (std::size_t i = 0; i < std::min(expected.size(), actual.size()); ++i) {
      const bool equal = expected[i].token == actual[i].token;
      ++difference.num_tokens;
      difference.num_equal += equal ? 1 : 0;
      if (!same_path) {
        continue;
      }
      const auto& top = actual[i].top_logprobs;
      const auto at = std::find_if(top.begin(), top.end(), [&](const TokenLogprob& entry) {
        return entry.token == expected[i].token;
      });
      const float logprob = at != top.end() ? at->logprob : top.back().logprob;
      const double off = std::abs(logprob - expected[i].logprob);
      ++difference.num_compared;
      difference.sum += off;
      difference.worst = std::max(difference.worst, off);
      if (i == 0) {
        difference.worst_first = std::max(difference.worst_first, off);
      }
      if (!equal) {
        const auto& leaders = expected[i].top_logprobs;
        const double lead = leaders[0].logprob - leaders[1].logprob;
        difference.widest_flip = std::max(difference.widest_flip, lead);
        if (i == 0) {
          difference.widest_first_flip = std::max(difference.widest_first_flip, lead);
        }
        same_path = false;
      }
    }
  }
  return difference;
}

class DummyModelTest : public ::testing::Test {
 protected:
  void open(const nlohmann::json& config) {
    test::write_file(folder_.path() / "config.json", config.dump());
    prompts_ = make_prompts(config["vocab_size"]);
  }

  config::ClusterConfig make_config() const {
    config::ClusterConfig config;
    config.model.path = folder_.path();
    config.model.load_format = LoadFormat::kDummy;
    config.model.max_model_len = 256;
    config.attention.kv_cache.pages = 512;
    config.attention.threads = std::max(1U, std::thread::hardware_concurrency() / 2);
    config.ffn.threads = config.attention.threads;
    config.transport.kind = config::TransportKind::kInproc;
    config.transport.spin_us = 0;
    config.scheduler.prefill_chunk = 48;
    config.scheduler.max_batched_tokens = 128;
    config.scheduler.max_sequences = 16;
    return config;
  }
  config::ClusterConfig cpu_config(Precision precision) const {
    config::ClusterConfig config = make_config();
    config.model.precision = precision;
    config.attention.kv_cache.dtype =
        precision == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    return config;
  }
  config::ClusterConfig gpu_config(const char* quantization) const {
    config::ClusterConfig config = make_config();
    config.model.quantization = quantization;
    if (config.model.quantization == "fp8") {
      config.transport.dispatch_dtype = DType::kFloat8E4M3;
    }
    config.attention.gpu.memory_fraction = 0.3;
    config.ffn.gpu.memory_fraction = 0.3;
    config.attention.device = {.is_cuda = true};
    config.ffn.device = {.is_cuda = true};
    config.ffn.servers = 2;
    return config;
  }

  Answers run(const config::ClusterConfig& config, const cluster::ClusterWeights& weights) const {
    const cluster::Blueprint blueprint(config);
    cluster::LocalCluster cluster(blueprint, weights);
    if (!cluster.wait_ready(60s)) {
      ADD_FAILURE() << "not ready: " << cluster.engine().state().detail;
      return {};
    }
    testing::Collector collector;
    std::vector<RequestId> ids;
    for (const auto& prompt : prompts_) {
      Request request;
      request.id = cluster.engine().next_request_id();
      request.prompt = prompt;
      request.max_tokens = kOutputLen;
      request.sampling.temperature = 0.0F;
      request.sampling.num_logprobs = 20;
      request.sampling.ignore_eos = true;
      request.arrival = std::chrono::steady_clock::now();
      ids.push_back(request.id);
      const Status status = cluster.engine().submit(std::move(request), &collector);
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    }
    EXPECT_TRUE(collector.wait_finished(ids.size(), 300s)) << cluster.engine().state().detail;
    Answers answers;
    for (const RequestId id : ids) {
      answers.push_back(collector.take(id));
      EXPECT_EQ(answers.back().tokens.size(), kOutputLen) << answers.back().error;
    }
    return answers;
  }
  Answers run(const config::ClusterConfig& config) const {
    return run(config, cluster::load_cluster_weights(cluster::Blueprint(config)));
  }

  void compare_gpu_with_cpu() const {
    Answers exact;
    Difference rounding;
    {
      const auto exact_config = cpu_config(Precision::kFloat32);
      const auto weights = cluster::load_cluster_weights(cluster::Blueprint(exact_config));
      exact = run(exact_config, weights);
      rounding = compare(exact, run(cpu_config(Precision::kBFloat16), weights));
      fmt::print("{}", rounding.describe("CPU bf16"));
    }
    ASSERT_FALSE(HasFailure());
    const Difference bf16 = compare(exact, run(gpu_config("none")));
    fmt::print("{}", bf16.describe("GPU bf16"));
    const Difference fp8 = compare(exact, run(gpu_config("fp8")));
    fmt::print("{}", fp8.describe("GPU fp8 experts"));

    // A kernel that forgets a row, a scale or a head is off by about 1 on average, and what it
    // chooses has nothing to do with leads. Another expert for one token, which any rounding may
    // bring about, is off by some 0.3 at that token alone.
    constexpr double kOtherExpert = 0.3;
    EXPECT_LT(bf16.mean(), 2 * rounding.mean() + 0.005);
    EXPECT_LT(bf16.worst_first, 2 * rounding.worst_first + kOtherExpert);
    EXPECT_LT(bf16.worst, 2 * rounding.worst + kOtherExpert);
    EXPECT_LT(bf16.widest_first_flip, 2 * rounding.worst_first + kOtherExpert);
    EXPECT_LT(bf16.widest_flip, 2 * rounding.worst);
    // e4m3 keeps 4 bits: 3 % of each weight, and as much of each activation. Where experts are few,
    // another one is off by as much as it is when bf16 chooses it.
    EXPECT_LT(fp8.mean(), 0.15);
    EXPECT_LT(fp8.worst_first, 0.6 + rounding.worst);
    // Quantised experts must be other experts.
    EXPECT_GT(fp8.mean(), bf16.mean());
  }

  /// Lanes, pieces, graphs and pages that don't suffice change no bit.
  void compare_ways_to_run() const {
    auto config = gpu_config("none");
    const auto weights = cluster::load_cluster_weights(cluster::Blueprint(config));
    config.scheduler.microbatches = 1;
    const Answers expected = run(config, weights);
    ASSERT_FALSE(HasFailure());
    for (const std::uint32_t lanes : {2U, 4U}) {
      for (const std::uint32_t chunk : {16U, 128U}) {
        for (const bool graphs : {false, true}) {
          config.scheduler.microbatches = lanes;
          config.scheduler.prefill_chunk = chunk;
          config.scheduler.graphs = graphs;
          // Enough for the longest alone, not for all.
          config.attention.kv_cache.pages = chunk == 16 ? 20 : 512;
          const Difference other = compare(expected, run(config, weights));
          fmt::print("{}", other.describe("lanes and pieces"));
          EXPECT_EQ(other.num_equal, other.num_tokens) << lanes << " lanes, pieces of " << chunk;
          EXPECT_EQ(other.worst, 0.0) << lanes << " lanes, pieces of " << chunk;
        }
      }
    }
  }

 private:
  test::TemporaryFolder folder_;
  std::vector<std::vector<TokenId>> prompts_;
};

TEST_F(DummyModelTest, QwenShaped) {
  open(config_of(qwen_shape()));
  compare_gpu_with_cpu();
}

// Sigmoid routes with a bias, norms over whole projections, half of each head rotated.
TEST_F(DummyModelTest, MiniMaxShaped) {
  open(config_of(minimax_shape(), {{"architectures", {"MiniMaxM2ForCausalLM"}},
                                   {"intermediate_size", minimax_shape().expert_intermediate_dim},
                                   {"rotary_dim", 64},
                                   {"scoring_func", "sigmoid"},
                                   {"use_routing_bias", true}}));
  compare_gpu_with_cpu();
}

// Few wide experts, no norms of queries and keys.
TEST_F(DummyModelTest, MixtralShaped) {
  open(config_of(qwen_shape(), {{"architectures", {"MixtralForCausalLM"}},
                                {"num_experts", nullptr},
                                {"num_local_experts", 5},
                                {"num_experts_per_tok", 2},
                                {"intermediate_size", 1792}}));
  compare_gpu_with_cpu();
}

// Biases, and slices of hidden units that tiles of 128 don't divide.
TEST_F(DummyModelTest, DenseWithBiases) {
  open(config_of(qwen_shape(), {{"architectures", {"Qwen2ForCausalLM"}},
                                {"num_experts", nullptr},
                                {"intermediate_size", 3000},
                                {"head_dim", 64},
                                {"rope_scaling",
                                 {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 64}}}}));
  compare_gpu_with_cpu();
}

// A shared expert with a gate on the attention server, and a dense layer among sparse ones.
TEST_F(DummyModelTest, SharedExpertAndDenseLayer) {
  open(config_of(qwen_shape(), {{"architectures", {"Qwen2MoeForCausalLM"}},
                                {"intermediate_size", 2048},
                                {"shared_expert_intermediate_size", 1000},
                                {"mlp_only_layers", {1}}}));
  compare_gpu_with_cpu();
}

/// Qwen3.5's layers: three gated delta nets, then attention with an output gate and wide heads of
/// which a quarter is rotated; zero-centred norms, a shared expert with a gate.
nlohmann::json hybrid_config() {
  return config_of(qwen_shape(), {{"architectures", {"Qwen3_5MoeForCausalLM"}},
                                  {"num_attention_heads", 8},
                                  {"head_dim", 256},
                                  {"partial_rotary_factor", 0.25},
                                  {"linear_num_key_heads", 4},
                                  {"linear_num_value_heads", 8},
                                  {"linear_key_head_dim", 128},
                                  {"linear_value_head_dim", 128},
                                  {"shared_expert_intermediate_size", 512}});
}

TEST_F(DummyModelTest, HybridOfDeltaNetsAndGatedAttention) {
  open(hybrid_config());
  compare_gpu_with_cpu();
}

/// DeepSeek-V2-Lite's attention: 16 heads, queries without a bottleneck; a dense layer, then
/// experts and shared ones.
nlohmann::json deepseek_v2_config() {
  nlohmann::json config = config_of(qwen_shape(), {{"architectures", {"DeepseekV2ForCausalLM"}},
                                                   {"num_experts", nullptr},
                                                   {"norm_topk_prob", false},
                                                   {"n_routed_experts", 64},
                                                   {"num_experts_per_tok", 6},
                                                   {"n_shared_experts", 2},
                                                   {"first_k_dense_replace", 1},
                                                   {"intermediate_size", 2048},
                                                   {"kv_lora_rank", 512},
                                                   {"qk_nope_head_dim", 128},
                                                   {"qk_rope_head_dim", 64},
                                                   {"v_head_dim", 128}});
  config["q_lora_rank"] = nullptr;  // which a patch would leave out
  return config;
}

TEST_F(DummyModelTest, DeepSeekV2LiteShaped) {
  open(deepseek_v2_config());
  compare_gpu_with_cpu();
}

// The best groups of experts by their best one; heads that tiles of 64 queries don't divide.
TEST_F(DummyModelTest, DeepSeekV2WithGroups) {
  auto config = deepseek_v2_config();
  config.merge_patch({{"num_attention_heads", 20},
                      {"num_hidden_layers", 2},
                      {"q_lora_rank", 384},
                      {"topk_method", "group_limited_greedy"},
                      {"n_group", 8},
                      {"topk_group", 3}});
  open(config);
  compare_gpu_with_cpu();
}

// 128 heads, queries through a bottleneck, groups by their two best experts with a bias.
TEST_F(DummyModelTest, DeepSeekV3Shaped) {
  auto config = deepseek_v2_config();
  config.merge_patch({{"architectures", {"DeepseekV3ForCausalLM"}},
                      {"num_attention_heads", 128},
                      {"num_key_value_heads", 128},
                      {"num_hidden_layers", 3},
                      {"num_experts_per_tok", 8},
                      {"norm_topk_prob", true},
                      {"n_shared_experts", 1},
                      {"q_lora_rank", 512},
                      {"n_group", 8},
                      {"topk_group", 4},
                      {"routed_scaling_factor", 2.5}});
  open(config);
  compare_gpu_with_cpu();
}

// Pages of latents are copied, shared and written by pieces in any lane.
TEST_F(DummyModelTest, LatentAttentionGivesTheSameInLanesPiecesAndAfterPreemption) {
  open(deepseek_v2_config());
  compare_ways_to_run();
}

// A recurrent state is read and written by every piece of a prompt, wherever it runs, and made
// again for a sequence that was preempted.
TEST_F(DummyModelTest, HybridGivesTheSameInLanesPiecesAndAfterPreemption) {
  open(hybrid_config());
  compare_ways_to_run();
}

}  // namespace
}  // namespace fastfd

int main(int argc, char** argv) {
  fastfd::device::set_cuda_environment();
  fastfd::init_logging("dummy_model", "warn");
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
