// Models whose layers are gated delta nets and gated attention: Qwen3-Next, Qwen3.5-MoE.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "fastfd/model/model.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kShapes = FASTFD_SOURCE_DIR "/configs/models";
const std::filesystem::path kModels = FASTFD_SOURCE_DIR "/tests/reference/models";

/// The text part of a published config.json, as a text model's own.
class HybridConfigTest : public ::testing::Test {
 protected:
  HybridConfigTest() {
    config_ = nlohmann::json::parse(test::read_file(kModels / "qwen3.5-moe" / "config.json"));
  }

  ModelSpec load() const {
    test::write_file(folder_.path() / "config.json", config_.dump());
    return load_model_spec(folder_.path(), {.format = LoadFormat::kDummy});
  }
  std::string error() const {
    try {
      load();
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }
  std::vector<AttentionKind> kinds() const {
    std::vector<AttentionKind> kinds;
    for (const LayerSpec& layer : load().layers) {
      kinds.push_back(layer.attention);
    }
    return kinds;
  }

  test::TemporaryFolder folder_;
  nlohmann::json config_;
};

TEST_F(HybridConfigTest, LayersAreOfTheListedTypeOrByInterval) {
  constexpr auto kFull = AttentionKind::kFull;
  constexpr auto kDelta = AttentionKind::kGatedDeltaNet;
  EXPECT_THAT(kinds(), ElementsAre(kDelta, kDelta, kFull, kDelta));
  config_.erase("layer_types");
  EXPECT_THAT(kinds(), ElementsAre(kDelta, kDelta, kDelta, kFull));
  config_["full_attention_interval"] = 2;
  EXPECT_THAT(kinds(), ElementsAre(kDelta, kFull, kDelta, kFull));
  EXPECT_EQ(load().index_of_kind(3), 1U) << "the second that has pages";
}

TEST_F(HybridConfigTest, AStateIsTheConvolutionsInputsAndAMatrixAHead) {
  config_["linear_num_key_heads"] = 2;
  config_["linear_num_value_heads"] = 4;
  config_["linear_key_head_dim"] = 8;
  config_["linear_value_head_dim"] = 32;
  config_["linear_conv_kernel_dim"] = 4;
  const ModelSpec spec = load();
  EXPECT_TRUE(spec.has_recurrent_state());
  EXPECT_EQ(spec.recurrent_state_bytes(), 3U * (3U * (2U * 16U + 128U) + 4U * 8U * 32U) * 4U);
}

TEST_F(HybridConfigTest, BadValuesAreRefusedByName) {
  const auto error_with = [&](const char* key, const nlohmann::json& value) {
    const nlohmann::json before = config_;
    config_[key] = value;
    const std::string text = error();
    config_ = before;
    return text;
  };
  EXPECT_THAT(error_with("layer_types", {"full_attention"}),
              AllOf(HasSubstr("layer_types"), HasSubstr("num_hidden_layers = 4")));
  EXPECT_THAT(error_with("layer_types", {"linear_attention", "mamba", "mamba", "mamba"}),
              AllOf(HasSubstr("'mamba' of layer 1"), HasSubstr("linear_attention")));
  EXPECT_THAT(error_with("linear_num_value_heads", 4), HasSubstr("linear_num_key_heads = 3"));
  EXPECT_THAT(error_with("linear_conv_kernel_dim", 1), HasSubstr("linear_conv_kernel_dim"));
  EXPECT_THAT(error_with("linear_conv_kernel_dim", 9), HasSubstr("linear_conv_kernel_dim"));
  EXPECT_THAT(error_with("full_attention_interval", 0), HasSubstr("full_attention_interval"));
  EXPECT_THAT(error_with("attention_bias", true), HasSubstr("attention_bias"));
  config_["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  EXPECT_THAT(error(), HasSubstr("text_config: is missing"));
}

TEST(HybridShapesTest, ThePublishedModelIsRead) {
  const ModelSpec spec =
      load_model_spec(kShapes / "qwen3.5-35b-a3b", {.format = LoadFormat::kDummy});
  EXPECT_EQ(spec.num_layers, 40U);
  EXPECT_EQ(spec.num_layers_of(AttentionKind::kFull), 10U);
  EXPECT_EQ(spec.num_experts, 256U);
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_TRUE(spec.has_output_gate);
  EXPECT_TRUE(spec.zero_centered_norms);
  EXPECT_EQ(spec.gated_delta_net.row_dim(), 8192 + 4096 + 64);
}

TEST(HybridLoadingTest, NothingIsReadThatSeesOrSpeaksAhead) {
  const auto folder = kModels / "qwen3.5-moe-published";
  const ModelSpec spec = load_model_spec(folder);
  LoadReport report;
  const AttentionWeights weights = load_attention_weights(folder, spec, &report);
  EXPECT_THAT(report.tensors, Contains(HasSubstr("model.language_model.layers.0.linear_attn")));
  EXPECT_THAT(report.tensors, Not(Contains(HasSubstr("visual"))));
  EXPECT_EQ(weights.layers[0].gated_delta_net.in.n(), spec.gated_delta_net.row_dim());
  EXPECT_EQ(weights.layers[0].full.qkv.n(), 0) << "a layer has the weights of its kind";
  EXPECT_EQ(weights.layers[1].full.gate.n(), spec.q_dim());
}

}  // namespace
}  // namespace fastfd::model
