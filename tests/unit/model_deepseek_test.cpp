// DeepSeek-V2 and V3: what config.json means, and how the checkpoint's projections are cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kModels = FASTFD_SOURCE_DIR "/tests/reference/models";
const LoadOptions kDummy{.format = LoadFormat::kDummy};

/// transformers' yarn_get_mscale, squared.
double score_factor(double factor, double mscale_all_dim) {
  const double mscale = 0.1 * mscale_all_dim * std::log(factor) + 1.0;
  return mscale * mscale;
}

TEST(DeepseekTest, ReadsVersion3) {
  const ModelSpec spec = load_model_spec(kModels / "deepseek-v3");
  const LatentSpec& latent = spec.latent;
  EXPECT_EQ(latent.num_heads, 3U);
  EXPECT_EQ(latent.q_rank, 20U);
  EXPECT_EQ(latent.kv_rank, 24U);
  EXPECT_EQ(latent.nope_dim, 12U);
  EXPECT_EQ(latent.rope_dim, 8U);
  EXPECT_EQ(latent.value_dim, 10U);
  EXPECT_TRUE(latent.interleaved_rope);
  EXPECT_FLOAT_EQ(latent.scale, static_cast<float>(score_factor(4.0, 1.0) / std::sqrt(20.0)));
  EXPECT_EQ(spec.rope.rotary_dim, 8);
  EXPECT_EQ(spec.rope.scaling, kernels::RopeScaling::kYarn);
  EXPECT_EQ(spec.num_prediction_layers, 1U);
  ASSERT_EQ(spec.layers.size(), 3U);
  EXPECT_EQ(spec.num_layers_of(AttentionKind::kLatent), 3U);
  EXPECT_EQ(spec.layers[1].ffn, FfnKind::kDense);
  EXPECT_EQ(spec.layers[2].ffn, FfnKind::kExperts);
  EXPECT_EQ(spec.shared_intermediate_dim, 16U);
  EXPECT_EQ(spec.router.scoring, kernels::RouterScoring::kSigmoid);
  EXPECT_EQ(spec.router.group_score, kernels::GroupScore::kTopTwoSum);
  EXPECT_EQ(spec.router.num_groups, 5U);
  EXPECT_EQ(spec.router.top_groups, 2U);
  EXPECT_TRUE(spec.router.renormalize);
  EXPECT_EQ(spec.router.scaling_factor, 2.5F);
  EXPECT_TRUE(spec.has_correction_bias);
}

TEST(DeepseekTest, ReadsVersion2) {
  const ModelSpec lite = load_model_spec(kModels / "deepseek-v2-lite");
  EXPECT_EQ(lite.latent.q_rank, 0U);  // null
  EXPECT_FLOAT_EQ(lite.latent.scale,
                  static_cast<float>(score_factor(4.0, 0.707) / std::sqrt(20.0)));
  EXPECT_EQ(lite.shared_intermediate_dim, 32U);
  EXPECT_EQ(lite.router.num_groups, 1U);
  EXPECT_EQ(lite.router.scoring, kernels::RouterScoring::kSoftmax);
  EXPECT_FALSE(lite.router.renormalize);
  EXPECT_FALSE(lite.has_correction_bias);

  const ModelSpec groups = load_model_spec(kModels / "deepseek-v2-groups");
  EXPECT_EQ(groups.latent.q_rank, 20U);
  EXPECT_FLOAT_EQ(groups.latent.scale, 1.0F / std::sqrt(20.0F));  // no scaled embedding
  EXPECT_EQ(groups.router.num_groups, 3U);
  EXPECT_EQ(groups.router.top_groups, 2U);
  EXPECT_EQ(groups.router.group_score, kernels::GroupScore::kMax);
  EXPECT_EQ(groups.router.scaling_factor, 4.0F);
}

TEST(DeepseekTest, ReadsThePublishedSizes) {
  const std::filesystem::path shapes = FASTFD_SOURCE_DIR "/configs/models";
  const ModelSpec lite = load_model_spec(shapes / "deepseek-v2-lite", kDummy);
  EXPECT_EQ(lite.latent.num_heads, 16U);
  EXPECT_EQ(lite.latent.row_dim(), 576U);
  EXPECT_EQ(lite.dense_intermediate_dim, 10944U);
  EXPECT_EQ(lite.shared_intermediate_dim, 2816U);
  const ModelSpec large = load_model_spec(shapes / "deepseek-v3", kDummy);
  EXPECT_EQ(large.num_layers, 61U);
  EXPECT_EQ(large.latent.num_heads, 128U);
  EXPECT_EQ(large.latent.query_dim(), 192U);
  EXPECT_EQ(large.num_experts, 256U);
  EXPECT_EQ(large.stored, StoredQuantization::kFp8Blocks);
  EXPECT_EQ(large.num_layers_of(AttentionKind::kFull), 0U);
}

/// Row-major values of a tensor, as bf16.
std::vector<bf16> read_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo& tensor = checkpoint.tensors().at(name);
  std::vector<bf16> values(tensor.num_elements);
  checkpoint.read(tensor, 0, values.size(), values.data());
  return values;
}

void expect_weights(const char* model) {
  SCOPED_TRACE(model);
  const ModelSpec spec = load_model_spec(kModels / model);
  LoadReport report;
  const AttentionWeights weights = load_attention_weights(kModels / model, spec, &report);
  EXPECT_THAT(report.tensors, Each(Not(HasSubstr("layers.3."))));  // the prediction layer
  Checkpoint checkpoint = Checkpoint::open(kModels / model);
  if (spec.stored == StoredQuantization::kFp8Blocks) {
    checkpoint.use_block_scales();
  }
  const LatentSpec& latent = spec.latent;
  const LatentAttentionWeights& layer = weights.layers[1].latent;
  EXPECT_EQ(layer.q_down.n(), latent.q_rank);
  EXPECT_EQ(layer.q_norm.size(), latent.q_rank);
  EXPECT_EQ(layer.kv_norm.size(), latent.kv_rank);
  const std::size_t rank = latent.kv_rank;
  const auto kv_up = read_tensor(checkpoint, "model.layers.1.self_attn.kv_b_proj.weight");
  ASSERT_EQ(layer.keys.size(), latent.num_heads);
  ASSERT_EQ(layer.values.size(), latent.num_heads);
  for (std::size_t head = 0; head < latent.num_heads; ++head) {
    const bf16* rows = kv_up.data() + head * (latent.nope_dim + latent.value_dim) * rank;
    for (std::size_t col = 0; col < rank; ++col) {
      const auto k = static_cast<std::int64_t>(col);
      for (std::size_t i = 0; i < latent.nope_dim; ++i) {
        ASSERT_EQ(layer.keys[head].at(k, static_cast<std::int64_t>(i)), rows[i * rank + col]);
      }
      for (std::size_t i = 0; i < latent.value_dim; ++i) {
        ASSERT_EQ(layer.values[head].at(static_cast<std::int64_t>(i), k),
                  rows[(latent.nope_dim + i) * rank + col]);
      }
    }
  }
  const auto out = read_tensor(checkpoint, "model.layers.1.self_attn.o_proj.weight");
  ASSERT_EQ(out.size(), static_cast<std::size_t>(layer.out.n() * layer.out.k()));
  for (std::int64_t row = 0; row < layer.out.n(); ++row) {
    ASSERT_EQ(layer.out.at(row, 3), out[static_cast<std::size_t>(row * layer.out.k() + 3)]);
  }
}

TEST(DeepseekTest, ProjectionsAreCutByHeads) {
  expect_weights("deepseek-v3");
  expect_weights("deepseek-v3-fp8");
  expect_weights("deepseek-v2-lite");
}

struct BadConfig {
  const char* name;
  const char* model;
  const char* patch;  ///< merged into the config; null removes a key
  const char* error;
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }

class BadDeepseekTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadDeepseekTest, IsRefusedByName) {
  const test::TemporaryFolder folder;
  auto config = nlohmann::json::parse(test::read_file(kModels / GetParam().model / "config.json"));
  config.merge_patch(nlohmann::json::parse(GetParam().patch));
  test::write_file(folder.path() / "config.json", config.dump());
  try {
    load_model_spec(folder.path(), kDummy);
    FAIL() << "not refused";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::string("config.json: ") + GetParam().error));
  }
}

const BadConfig kBadConfigs[] = {
    {"Biases", "deepseek-v3", R"({"attention_bias":true})",
     "attention_bias: biases of attention projections are not supported"},
    {"FfnBiases", "deepseek-v2-lite", R"({"mlp_bias":true})",
     "mlp_bias: biases of FFNs are not supported"},
    {"Scoring", "deepseek-v3", R"({"scoring_func":"softmax"})",
     "scoring_func: 'softmax' is not supported; use a model with 'sigmoid'"},
    {"Version2Scoring", "deepseek-v2-lite", R"({"scoring_func":"sigmoid"})",
     "scoring_func: 'sigmoid' is not supported; use a model with 'softmax'"},
    {"Method", "deepseek-v3", R"({"topk_method":"greedy"})",
     "topk_method: 'greedy' is not supported; use a model with 'noaux_tc'"},
    {"Version2Method", "deepseek-v2-lite", R"({"topk_method":"noaux_tc"})",
     "topk_method: 'noaux_tc' is not supported; use a model with 'greedy' or"},
    {"Version2Sums", "deepseek-v2-lite", R"({"norm_topk_prob":true})",
     "norm_topk_prob: routes of DeepSeek-V2 that sum to 1 are not supported"},
    {"LayerFrequency", "deepseek-v3", R"({"moe_layer_freq":2})",
     "moe_layer_freq: dense layers among those with experts are not supported"},
    {"Groups", "deepseek-v3", R"({"n_group":3})",
     "n_group: 10 experts in 3 groups, of which 2 are chosen, is impossible"},
    {"TopGroups", "deepseek-v3", R"({"topk_group":6})",
     "n_group: 10 experts in 5 groups, of which 6"},
    {"TooFewInGroups", "deepseek-v3", R"({"topk_group":1})",
     "topk_group: 1 groups of 2 experts can't give num_experts_per_tok = 4"},
    {"GroupsOfOne", "deepseek-v3", R"({"n_group":10,"topk_group":5})",
     "n_group: groups of one expert have no two best"},
    {"OddRope", "deepseek-v3", R"({"qk_rope_head_dim":7,"head_dim":8})",
     "qk_rope_head_dim: 7 is no even number"},
    {"NoRank", "deepseek-v3", R"({"kv_lora_rank":0})", "kv_lora_rank: is 0, not an integer from 1"},
};

INSTANTIATE_TEST_SUITE_P(Config, BadDeepseekTest, ::testing::ValuesIn(kBadConfigs),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace fastfd::model
