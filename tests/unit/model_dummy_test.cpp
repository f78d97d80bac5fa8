#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>

#include "fastfd/model/model.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using ::testing::HasSubstr;

constexpr LoadOptions kDummy{.format = LoadFormat::kDummy};
const std::filesystem::path kShapes = FASTFD_SOURCE_DIR "/configs/models";

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

double stddev_of(const kernels::PackedWeights& matrix, std::int64_t first_row,
                 std::int64_t num_rows) {
  double squares = 0.0;
  for (std::int64_t row = first_row; row < first_row + num_rows; ++row) {
    for (std::int64_t col = 0; col < matrix.k(); ++col) {
      squares += std::pow(matrix.at(row, col).to_float(), 2);
    }
  }
  return std::sqrt(squares / static_cast<double>(num_rows * matrix.k()));
}

/// A folder with nothing but config.json.
class DummyModelTest : public ::testing::Test {
 protected:
  DummyModelTest() {
    options_.hidden_dim = 128;
    options_.expert_intermediate_dim = 64;
    options_.num_layers = 3;
    test::write_file(folder_.path() / "config.json", test::make_tiny_config(options_));
  }
  const std::filesystem::path& path() const { return folder_.path(); }

  test::TinyCheckpointOptions options_;
  test::TemporaryFolder folder_;
};

TEST_F(DummyModelTest, NeedsConfigJsonAlone) {
  EXPECT_THAT(error_of([&] { load_model_spec(path()); }), HasSubstr("model.safetensors"));
  const ModelSpec spec = load_model_spec(path(), kDummy);
  EXPECT_EQ(spec.hidden_dim, 128U);
  EXPECT_EQ(spec.num_layers, 3U);
  LoadReport report;
  const AttentionWeights weights = load_attention_weights(path(), spec, &report);
  EXPECT_EQ(weights.layers.size(), 3U);
  EXPECT_EQ(report.bytes_read, 0U);
  EXPECT_EQ(report.tensors.size(), 3U + 3U * 9U);
}

TEST_F(DummyModelTest, MatricesKeepMagnitudesAndNormsAreNearOne) {
  const ModelSpec spec = load_model_spec(path(), kDummy);
  const AttentionWeights weights = load_attention_weights(path(), spec);
  const auto& layer = weights.layers[1];
  const double expected = 1.0 / std::sqrt(128.0);
  EXPECT_NEAR(stddev_of(layer.full.qkv, 0, layer.full.qkv.n()), expected, 0.1 * expected);
  EXPECT_NEAR(stddev_of(weights.lm_head, 0, weights.lm_head.n()), expected, 0.1 * expected);
  for (const float weight : layer.input_norm) {
    EXPECT_NEAR(weight, 1.0F, 0.4F);
  }
  EXPECT_NE(layer.input_norm, layer.post_norm);
  EXPECT_NE(layer.input_norm, weights.layers[2].input_norm);
  const FfnWeights ffn =
      load_ffn_weights(path(), spec, ExpertPlacement::contiguous(spec.num_experts, 1, 1), 0);
  const double of_down = 1.0 / std::sqrt(64.0);
  EXPECT_NEAR(stddev_of(ffn.layers[0].experts[1].down, 0, 128), of_down, 0.1 * of_down);
}

TEST_F(DummyModelTest, ServersHoldPartsOfOneModel) {
  const ModelSpec spec = load_model_spec(path(), kDummy);
  const auto all =
      load_ffn_weights(path(), spec, ExpertPlacement::contiguous(spec.num_experts, 1, 1), 0);
  const auto placement = ExpertPlacement::contiguous(spec.num_experts, 2, 1);
  const auto half = load_ffn_weights(path(), spec, placement, 1);
  const std::uint32_t expert = placement.experts_of(1)[1];
  const auto& one = all.layers[2].experts[expert].gate_up;
  const auto& same = half.layers[2].experts[1].gate_up;
  for (std::int64_t row = 0; row < one.n(); ++row) {
    ASSERT_EQ(one.at(row, row), same.at(row, row));
  }
  EXPECT_NE(one.at(0, 0), all.layers[1].experts[expert].gate_up.at(0, 0));
}

TEST_F(DummyModelTest, SeedAndLayersAreOfTheFingerprint) {
  const auto with = [&](LoadOptions options) {
    options.format = LoadFormat::kDummy;
    return load_model_spec(path(), options);
  };
  const ModelSpec spec = with({});
  EXPECT_EQ(with({}).fingerprint, spec.fingerprint);
  EXPECT_EQ(with({.num_layers = 3}).fingerprint, spec.fingerprint);
  EXPECT_NE(with({.dummy_seed = 1}).fingerprint, spec.fingerprint);
  const ModelSpec cut = with({.num_layers = 2});
  EXPECT_NE(cut.fingerprint, spec.fingerprint);
  EXPECT_EQ(cut.num_layers, 2U);
  EXPECT_EQ(load_attention_weights(path(), cut).layers.size(), 2U);
  EXPECT_NE(load_attention_weights(path(), with({.dummy_seed = 1})).embedding,
            load_attention_weights(path(), spec).embedding);
  EXPECT_THAT(error_of([&] { with({.num_layers = 4}); }),
              HasSubstr("num_hidden_layers: is 3, but num_layers asks for the first 4; use at most "
                        "3, or 0 for all"));
}

TEST_F(DummyModelTest, ACheckpointCanBeCutToo) {
  test::write_tiny_checkpoint(path(), options_);
  const ModelSpec whole = load_model_spec(path());
  const ModelSpec cut = load_model_spec(path(), {.num_layers = 1});
  EXPECT_EQ(cut.num_layers, 1U);
  EXPECT_NE(cut.fingerprint, whole.fingerprint);
  const auto first = load_attention_weights(path(), cut);
  ASSERT_EQ(first.layers.size(), 1U);
  EXPECT_EQ(first.layers[0].input_norm, load_attention_weights(path(), whole).layers[0].input_norm);
}

TEST_F(DummyModelTest, Fp8ExpertsNeedAGpu) {
  const ModelSpec spec =
      load_model_spec(path(), {.format = LoadFormat::kDummy, .expert_dtype = DType::kFloat8E4M3});
  EXPECT_THAT(error_of([&] {
                load_ffn_weights(path(), spec, ExpertPlacement::contiguous(spec.num_experts, 1, 1),
                                 0);
              }),
              HasSubstr("experts in float8_e4m3 need a GPU"));
}

TEST(ModelShapesTest, PublicShapesAreRead) {
  const ModelSpec small = load_model_spec(kShapes / "qwen3-30b-a3b", kDummy);
  EXPECT_EQ(small.num_layers, 48U);
  EXPECT_EQ(small.num_q_heads, 32U);
  EXPECT_EQ(small.expert_intermediate_dim, 768U);
  const ModelSpec large = load_model_spec(kShapes / "qwen3-235b-a22b", kDummy);
  EXPECT_EQ(large.num_layers, 94U);
  EXPECT_EQ(large.hidden_dim, 4096U);
  const ModelSpec lookalike = load_model_spec(kShapes / "qwen3-moe-of-minimax-m2.5-size", kDummy);
  EXPECT_EQ(lookalike.num_experts, 256U);
  EXPECT_EQ(lookalike.num_kv_heads, 8U);
  const ModelSpec minimax = load_model_spec(kShapes / "minimax-m2.5", kDummy);
  EXPECT_EQ(minimax.num_experts, 256U);
  EXPECT_EQ(minimax.rope.rotary_dim, 64);
  EXPECT_EQ(minimax.router.scoring, kernels::RouterScoring::kSigmoid);
}

}  // namespace
}  // namespace fastfd::model
