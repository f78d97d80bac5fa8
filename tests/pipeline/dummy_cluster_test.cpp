// A folder with nothing but config.json, served with random weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/gpu_limits.h"
#include "fastfd/cluster/local_cluster.h"
#include "fastfd/cluster/offline_bench.h"
#include "support/collector.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::cluster {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class DummyClusterTest : public ::testing::Test {
 protected:
  DummyClusterTest() {
    test::TinyCheckpointOptions options;
    options.num_layers = 3;
    test::write_file(folder_.path() / "config.json", test::make_tiny_config(options));
    config_.model.path = folder_.path();
    config_.model.load_format = LoadFormat::kDummy;
    config_.transport.kind = config::TransportKind::kInproc;
    config_.attention.kv_cache.pages = 64;
  }

  static std::vector<TokenId> generate(const config::ClusterConfig& config) {
    const Blueprint blueprint(config);
    LocalCluster cluster(blueprint, load_cluster_weights(blueprint));
    EXPECT_TRUE(cluster.wait_ready(30s));
    testing::Collector collector;
    Request request;
    request.id = cluster.engine().next_request_id();
    request.prompt = {1, 2, 3, 4, 5};
    request.max_tokens = 20;
    request.sampling.temperature = 0.0F;
    request.sampling.ignore_eos = true;
    request.arrival = std::chrono::steady_clock::now();
    const RequestId id = request.id;
    EXPECT_TRUE(cluster.engine().submit(std::move(request), &collector).is_ok());
    EXPECT_TRUE(collector.wait_finished(1, 60s));
    std::vector<TokenId> tokens;
    for (const TokenEvent& event : collector.take(id).tokens) {
      tokens.push_back(event.token);
    }
    return tokens;
  }

  test::TemporaryFolder folder_;
  config::ClusterConfig config_;
};

TEST_F(DummyClusterTest, EveryTopologyServesTheSameModel) {
  config_.model.precision = Precision::kFloat32;
  config_.attention.kv_cache.dtype = DType::kFloat32;
  const auto tokens = generate(config_);
  EXPECT_EQ(tokens.size(), 20U);
  config_.attention.servers = 2;
  config_.ffn.servers = 3;
  EXPECT_EQ(generate(config_), tokens);
}

TEST_F(DummyClusterTest, RunsTheFirstLayersOnly) {
  config_.model.num_layers = 2;
  EXPECT_EQ(Blueprint(config_).spec().num_layers, 2U);
  EXPECT_EQ(generate(config_).size(), 20U);
}

TEST_F(DummyClusterTest, TheOfflineBenchRuns) {
  EXPECT_EQ(run_offline_bench(config_, {.batch = 2, .prompt_len = 4, .output_len = 8}), 0);
}

TEST_F(DummyClusterTest, PagesHoldWhatTheLayersCache) {
  // Keys and values of 3 layers, 2 KV heads of 8.
  EXPECT_EQ(Blueprint(config_).kv_page_bytes(), 2U * 3 * 2 * 8 * 16 * sizeof(bf16));
  // A latent row and a rotated key for all 16 heads.
  config_.model.path = FASTFD_SOURCE_DIR "/configs/models/deepseek-v2-lite";
  config_.model.max_model_len = 1024;
  const Blueprint blueprint(config_);
  EXPECT_EQ(blueprint.kv_page_bytes(), 27U * (512 + 64) * 16 * sizeof(bf16));
  EXPECT_THAT(
      blueprint.describe_attention_memory(),
      HasSubstr("64 pages x 16 tokens x (27 layers x (512 latent + 64 rotated)) x 2 bytes"));
}

TEST_F(DummyClusterTest, Fp8ExpertsOnTheCpuAreRefused) {
  config_.source = "c.yaml";
  config_.model.quantization = "fp8";
  try {
    const Blueprint blueprint(config_);
    FAIL() << "not refused";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("c.yaml: model.quantization: fp8 needs both pools on GPUs"));
  }
}

// Of a broken checkpoint, or of a token whose activations overflow.
TEST_F(DummyClusterTest, ARequestWhoseLogitsAreNoNumbersEndsAlone) {
  constexpr TokenId kBroken = 7;
  test::TinyCheckpointOptions options;
  auto tensors = test::make_tiny_tensors(options);
  auto& embedding = tensors.at("model.embed_tokens.weight");
  embedding.values[kBroken * options.hidden_dim] = std::numeric_limits<float>::quiet_NaN();
  test::write_file(folder_.path() / "config.json", test::make_tiny_config(options));
  test::write_safetensors(folder_.path() / "model.safetensors", tensors);
  config_.model.load_format = LoadFormat::kAuto;
  const Blueprint blueprint(config_);
  LocalCluster cluster(blueprint, load_cluster_weights(blueprint));
  ASSERT_TRUE(cluster.wait_ready(30s));
  std::vector<std::vector<TokenId>> answers;
  for (const bool beside_a_broken_one : {false, true}) {
    testing::Collector collector;
    std::vector<RequestId> ids;
    for (const TokenId last : {TokenId{6}, kBroken}) {
      Request request;
      request.id = cluster.engine().next_request_id();
      request.prompt = {1, 2, 3, last};
      request.max_tokens = 20;
      request.sampling.temperature = 0.0F;
      request.sampling.ignore_eos = true;
      request.sampling.logit_bias = {{kBroken, -100.0F}};
      request.arrival = std::chrono::steady_clock::now();
      ids.push_back(request.id);
      ASSERT_TRUE(cluster.engine().submit(std::move(request), &collector).is_ok());
      if (!beside_a_broken_one) {
        break;
      }
    }
    ASSERT_TRUE(collector.wait_finished(ids.size(), 60s));
    const auto good = collector.take(ids[0]);
    EXPECT_EQ(good.error, "");
    auto& tokens = answers.emplace_back();
    for (const TokenEvent& event : good.tokens) {
      tokens.push_back(event.token);
    }
    if (beside_a_broken_one) {
      EXPECT_THAT(collector.take(ids[1]).error, HasSubstr("NaN or infinite"));
    }
  }
  EXPECT_EQ(answers[0].size(), 20U);
  EXPECT_EQ(answers[0], answers[1]);
}

class GpuLimitsTest : public DummyClusterTest {
 protected:
  /// Of a model with these keys.
  std::string lacking(const nlohmann::json& patch) {
    nlohmann::json config = nlohmann::json::parse(test::make_tiny_config({}));
    config.merge_patch({{"hidden_size", 256}, {"head_dim", 64}});
    config.merge_patch(patch);
    test::write_file(folder_.path() / "config.json", config.dump());
    const Blueprint blueprint(config_);
    return what_gpus_lack(blueprint.spec(), blueprint.max_model_len());
  }
};

TEST_F(GpuLimitsTest, ShapesWithoutKernelsAreRefusedByName) {
  EXPECT_EQ(lacking(nlohmann::json::object()), "");
  EXPECT_EQ(lacking({{"hidden_size", 192}}), "hidden_size 192 (multiples of 128 up to 8192 can)");
  EXPECT_EQ(lacking({{"head_dim", 32}}), "head_dim 32 (64, 128 and 256 can)");
}

TEST_F(GpuLimitsTest, WindowsMayHideNothing) {
  config_.model.max_model_len = 64;
  EXPECT_EQ(lacking({{"use_sliding_window", true}, {"sliding_window", 63}}),
            "sliding windows of 63 tokens (up to a model.max_model_len of 63 they can)");
  EXPECT_EQ(lacking({{"use_sliding_window", true}, {"sliding_window", 64}}), "");
}

TEST_F(GpuLimitsTest, ExpertsOfGptOssAreRefused) {
  const nlohmann::json gpt_oss = {{"architectures", {"GptOssForCausalLM"}},
                                  {"intermediate_size", 128},
                                  {"num_local_experts", 4}};
  EXPECT_EQ(lacking(gpt_oss), "biases and clamped activations of experts");
}

TEST_F(GpuLimitsTest, LatentAttentionOfAnotherShapeIsRefused) {
  nlohmann::json deepseek = {{"architectures", {"DeepseekV3ForCausalLM"}},
                             {"num_experts", nullptr},
                             {"n_routed_experts", 64},
                             {"intermediate_size", 128},
                             {"n_group", 8},
                             {"topk_group", 4},
                             {"first_k_dense_replace", 1},
                             {"q_lora_rank", 64},
                             {"kv_lora_rank", 512},
                             {"qk_nope_head_dim", 128},
                             {"qk_rope_head_dim", 64},
                             {"v_head_dim", 128}};
  EXPECT_EQ(lacking(deepseek), "");
  deepseek["kv_lora_rank"] = 256;
  EXPECT_EQ(lacking(deepseek),
            "latent attention over rows of 256 + 64 elements, with queries out of 64, 128 of them "
            "not rotated, and values of 128 (512 + 64 can, and multiples of 8)");
  deepseek["kv_lora_rank"] = 512;
  deepseek["n_group"] = 64;
  deepseek["topk_group"] = 64;
  deepseek["n_routed_experts"] = 128;
  EXPECT_EQ(lacking(deepseek), "64 groups of experts (up to 32 can)");
}

TEST_F(GpuLimitsTest, DeltaNetsOfAnotherShapeAreRefused) {
  nlohmann::json hybrid = {{"architectures", {"Qwen3_5MoeForCausalLM"}},
                           {"linear_num_key_heads", 2},
                           {"linear_num_value_heads", 4},
                           {"linear_key_head_dim", 64},
                           {"linear_value_head_dim", 32},
                           {"shared_expert_intermediate_size", 64}};
  EXPECT_EQ(lacking(hybrid), "");
  hybrid["linear_key_head_dim"] = 96;
  EXPECT_EQ(lacking(hybrid),
            "gated delta net layers of 4 heads, 32 wide, over keys 96 wide (multiples of 4, "
            "multiples of 32 up to 256, and 64, 128 or 256 can)");
}

}  // namespace
}  // namespace fastfd::cluster
