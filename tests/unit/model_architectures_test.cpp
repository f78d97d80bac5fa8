// What each architecture makes of its config.json, and where it finds its tensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using kernels::QkNorm;
using kernels::RopeScaling;
using kernels::RouterScoring;
using test::TinyTensors;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LoadOptions kDummy{.format = LoadFormat::kDummy};

/// Keys that all decoders have.
nlohmann::json config_of(const std::string& architecture,
                         const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config = {{"architectures", {architecture}},
                           {"vocab_size", 96},
                           {"hidden_size", 32},
                           {"num_hidden_layers", 3},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"head_dim", 16},
                           {"max_position_embeddings", 128},
                           {"intermediate_size", 72}};
  config.merge_patch(more);
  return config;
}

nlohmann::json with_experts(const std::string& architecture,
                            const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config =
      config_of(architecture,
                {{"num_local_experts", 5}, {"num_experts_per_tok", 2}, {"intermediate_size", 24}});
  config.merge_patch(more);
  return config;
}

class ArchitectureTest : public ::testing::Test {
 protected:
  const std::filesystem::path& path() const { return folder_.path(); }

  ModelSpec load(const nlohmann::json& config, const LoadOptions& options = kDummy) const {
    test::write_file(path() / "config.json", config.dump());
    return load_model_spec(path(), options);
  }
  std::string error_of(const nlohmann::json& config, const LoadOptions& options = kDummy) const {
    try {
      load(config, options);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(ArchitectureTest, LlamaIsDense) {
  const ModelSpec spec = load(config_of("LlamaForCausalLM"));
  EXPECT_FALSE(spec.has_layer(FfnKind::kExperts));
  EXPECT_EQ(spec.dense_intermediate_dim, 72U);
  EXPECT_EQ(spec.num_experts, 0U);
  EXPECT_EQ(spec.max_routes_per_row(), 1U);
  EXPECT_EQ(spec.num_placed_experts(3), 3U);
  EXPECT_EQ(spec.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_EQ(spec.rope.rotary_dim, 16);
  const ModelSpec biased = load(config_of("LlamaForCausalLM", {{"attention_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias);
  EXPECT_TRUE(biased.out_bias);
  EXPECT_THAT(error_of(config_of("LlamaForCausalLM", {{"mlp_bias", true}})),
              HasSubstr("mlp_bias: biases of the FFN are not supported"));
}

TEST_F(ArchitectureTest, QwensDifferInNormsAndBiases) {
  const ModelSpec qwen2 = load(config_of("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias);
  EXPECT_EQ(qwen2.qk_norm, QkNorm::kNone);
  const ModelSpec qwen3 = load(config_of("Qwen3ForCausalLM"));
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(load(config_of("Qwen3ForCausalLM", {{"head_dim", nullptr}})).head_dim, 128U);
}

TEST_F(ArchitectureTest, QwenMoeMayHaveDenseLayers) {
  nlohmann::json config = with_experts("Qwen3MoeForCausalLM", {{"moe_intermediate_size", 8},
                                                               {"num_hidden_layers", 4},
                                                               {"decoder_sparse_step", 2},
                                                               {"mlp_only_layers", {3}}});
  const ModelSpec spec = load(config);
  EXPECT_EQ(spec.expert_intermediate_dim, 8U);
  EXPECT_EQ(spec.dense_intermediate_dim, 24U);
  const auto ffn = [&](std::uint32_t layer) { return spec.layers[layer].ffn; };
  EXPECT_EQ(ffn(0), FfnKind::kDense);
  EXPECT_EQ(ffn(1), FfnKind::kExperts);
  EXPECT_EQ(ffn(2), FfnKind::kDense);
  EXPECT_EQ(ffn(3), FfnKind::kDense);
  EXPECT_EQ(spec.num_placed_experts(3), 5U);
}

TEST_F(ArchitectureTest, Qwen2MoeSharesAnExpert) {
  const ModelSpec spec =
      load(with_experts("Qwen2MoeForCausalLM",
                        {{"moe_intermediate_size", 8}, {"shared_expert_intermediate_size", 20}}));
  EXPECT_EQ(spec.shared_intermediate_dim, 20U);
  EXPECT_TRUE(spec.has_shared_gate);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.router.renormalize);
  LoadReport report;
  const AttentionWeights weights = load_attention_weights(path(), spec, &report);
  EXPECT_EQ(weights.layers[2].shared.expert.down.n(), 32);
  EXPECT_EQ(weights.layers[2].shared.gate.n(), 1);
  EXPECT_THAT(report.tensors, Contains("model.layers.2.mlp.shared_expert.up_proj.weight"));
  EXPECT_THAT(report.tensors, Contains("model.layers.2.mlp.shared_expert_gate.weight"));
}

TEST_F(ArchitectureTest, MixtralRoutesBySoftmax) {
  const ModelSpec spec = load(with_experts("MixtralForCausalLM", {{"rope_theta", nullptr}}));
  EXPECT_EQ(spec.num_experts, 5U);
  EXPECT_EQ(spec.expert_intermediate_dim, 24U);
  EXPECT_EQ(spec.router.scoring, RouterScoring::kSoftmax);
  EXPECT_TRUE(spec.router.renormalize);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.rms_eps, 1e-5F);
}

TEST_F(ArchitectureTest, MiniMaxRoutesBySigmoidWithABias) {
  const nlohmann::json published = {{"rotary_dim", 8},
                                    {"scoring_func", "sigmoid"},
                                    {"use_qk_norm", true},
                                    {"qk_norm_type", "per_layer"},
                                    {"use_routing_bias", true},
                                    {"attn_type_list", {1, 1, 1}},
                                    {"shared_intermediate_size", 0}};
  const ModelSpec spec = load(with_experts("MiniMaxM2ForCausalLM", published));
  EXPECT_EQ(spec.router.scoring, RouterScoring::kSigmoid);
  EXPECT_TRUE(spec.has_correction_bias);
  EXPECT_EQ(spec.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(spec.rope.rotary_dim, 8);
  EXPECT_EQ(spec.rope.theta, 5e6);
  const struct {
    nlohmann::json patch;
    const char* error;
  } kVariants[] = {
      {{{"scoring_func", "softmax"}}, "scoring_func: 'softmax' is not supported"},
      {{{"qk_norm_type", "per_head"}}, "qk_norm_type: 'per_head' is not supported"},
      {{{"use_qk_norm", false}}, "use_qk_norm: is false, which is not supported"},
      {{{"attn_type_list", {1, 0, 1}}}, "attn_type_list: linear attention is not supported"},
      {{{"shared_intermediate_size", 8}}, "shared_intermediate_size: shared experts are not"},
  };
  for (const auto& [patch, error] : kVariants) {
    EXPECT_THAT(error_of(with_experts("MiniMaxM2ForCausalLM", patch)), HasSubstr(error));
  }
}

TEST_F(ArchitectureTest, WindowsThatHideNothingAreNoWindows) {
  const auto windows = [&](const nlohmann::json& config) {
    std::vector<std::uint32_t> all;
    for (const LayerSpec& layer : load(config).layers) {
      all.push_back(layer.window);
    }
    return all;
  };
  const std::vector<std::uint32_t> none = {0, 0, 0};
  EXPECT_EQ(windows(with_experts("MixtralForCausalLM", {{"sliding_window", nullptr}})), none);
  EXPECT_EQ(windows(with_experts("MixtralForCausalLM", {{"sliding_window", 128}})), none);
  EXPECT_THAT(windows(with_experts("MixtralForCausalLM", {{"sliding_window", 127}})),
              ElementsAre(127, 127, 127));
  // Mistral has one where config.json says nothing, and none where it says null.
  nlohmann::json mistral = config_of("MistralForCausalLM", {{"max_position_embeddings", 8192}});
  EXPECT_THAT(windows(mistral), ElementsAre(4096, 4096, 4096));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral), none);
  // Qwen: only layers from max_window_layers on, or those that layer_types names.
  nlohmann::json qwen = config_of("Qwen3ForCausalLM", {{"sliding_window", 8}});
  EXPECT_EQ(windows(qwen), none);
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(qwen), none);
  qwen["max_window_layers"] = 2;
  EXPECT_THAT(windows(qwen), ElementsAre(0, 0, 8));
  qwen["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(windows(qwen), none);
  qwen["layer_types"][1] = "sliding_attention";
  EXPECT_THAT(windows(qwen), ElementsAre(0, 8, 0));
  EXPECT_EQ(load(qwen).smallest_window(), 8U);
  qwen["sliding_window"] = nullptr;
  EXPECT_EQ(windows(qwen), none);
  qwen["layer_types"][1] = "chunked_attention";
  EXPECT_THAT(error_of(qwen), HasSubstr("layer_types: '\"chunked_attention\"' is not supported"));
  qwen["layer_types"] = {"full_attention"};
  EXPECT_THAT(error_of(qwen),
              HasSubstr("layer_types: is not a list of num_hidden_layers = 3 names"));
  // Those of Qwen2-MoE come by turns.
  nlohmann::json moe = with_experts("Qwen2MoeForCausalLM", {{"moe_intermediate_size", 8},
                                                            {"shared_expert_intermediate_size", 8},
                                                            {"sliding_window", 8}});
  EXPECT_EQ(windows(moe), none);
  moe["use_sliding_window"] = true;
  EXPECT_THAT(error_of(moe), HasSubstr("use_sliding_window: windows of Qwen2-MoE are not"));
}

TEST_F(ArchitectureTest, RopeScalingInBothSpellings) {
  const auto rope = [&](const nlohmann::json& patch) {
    return load(config_of("LlamaForCausalLM", patch)).rope;
  };
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 64}};
  const auto old = rope({{"rope_scaling", llama3}, {"rope_theta", 5e5}});
  nlohmann::json parameters = llama3;
  parameters["rope_theta"] = 5e5;
  const auto recent = rope({{"rope_parameters", parameters}});
  for (const auto& params : {old, recent}) {
    EXPECT_EQ(params.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(params.theta, 5e5);
    EXPECT_EQ(params.factor, 8.0);
    EXPECT_EQ(params.original_max_positions, 64.0);
  }
  EXPECT_EQ(rope({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}).scaling,
            RopeScaling::kLinear);
  // Scaled only beyond max_position_embeddings, which FastFD does not serve.
  EXPECT_EQ(rope({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}).scaling,
            RopeScaling::kNone);
}

TEST_F(ArchitectureTest, YarnInfersItsTemperature) {
  const auto factor = [&](const nlohmann::json& more) {
    nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 40.0}};
    yarn.merge_patch(more);
    const auto rope = load(config_of("LlamaForCausalLM", {{"rope_scaling", yarn}})).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
    EXPECT_EQ(rope.original_max_positions, 128.0);
    return rope.attention_factor;
  };
  EXPECT_NEAR(factor(nlohmann::json::object()), 0.1 * std::log(40.0) + 1.0, 1e-12);
  EXPECT_EQ(factor({{"attention_factor", 1.5}}), 1.5);
  // transformers 5.24, _compute_yarn_parameters.
  EXPECT_NEAR(factor({{"mscale", 0.707}, {"mscale_all_dim", 1.0}}), 0.9210423553163399, 1e-12);
}

TEST_F(ArchitectureTest, DenseLayersAreCutIntoSlicesOfAllHiddenUnits) {
  const ModelSpec spec = load(config_of("LlamaForCausalLM"));
  const auto whole = load_ffn_weights(path(), spec, ExpertPlacement::contiguous(1, 1, 1), 0);
  constexpr std::uint32_t kServers = 5;  // 72 units: 15, 15, 14, 14, 14
  const auto placement = ExpertPlacement::contiguous(kServers, kServers, 1);
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    const auto& reference = whole.layers[layer].experts.at(0);
    std::uint32_t unit = 0;
    for (ServerRank rank = 0; rank < kServers; ++rank) {
      const auto weights = load_ffn_weights(path(), spec, placement, rank);
      const auto& share = weights.layers[layer];
      ASSERT_EQ(share.experts.size(), 1U);
      ASSERT_EQ(share.intermediate_dim, 15U);
      const auto& slice = share.experts[0];
      const std::uint32_t width = rank < 2 ? 15 : 14;
      for (std::uint32_t i = 0; i < 15; ++i) {
        const std::uint32_t from = unit + i;
        for (std::uint32_t col = 0; col < spec.hidden_dim; ++col) {
          const bool is_there = i < width;
          const auto expected = [&](bf16 value) { return is_there ? value.to_float() : 0.0F; };
          const std::int64_t row = from / 32 * 64 + from % 32;  // gate rows of ExpertWeights
          ASSERT_EQ(slice.gate_up.at(i, col).to_float(), expected(reference.gate_up.at(row, col)));
          ASSERT_EQ(slice.gate_up.at(i + 32, col).to_float(),
                    expected(reference.gate_up.at(row + 32, col)));
          ASSERT_EQ(slice.down.at(col, i).to_float(), expected(reference.down.at(col, from)));
        }
      }
      unit += width;
    }
    EXPECT_EQ(unit, spec.dense_intermediate_dim);
  }
}

TEST(DenseSliceTest, SlicesAreNearEqualAndCoverAll) {
  for (const std::uint32_t dim : {1U, 24U, 72U, 1000U, 1536U, 8960U, 14336U}) {
    for (const std::uint32_t num_slices : {1U, 2U, 3U, 7U, 24U}) {
      std::uint32_t end = 0;
      std::uint32_t least = dim;
      std::uint32_t most = 0;
      for (std::uint32_t i = 0; i < num_slices; ++i) {
        const DenseSlice slice = dense_slice(dim, num_slices, i);
        EXPECT_EQ(slice.begin, end);
        end = slice.end;
        least = std::min(least, slice.end - slice.begin);
        most = std::max(most, slice.end - slice.begin);
      }
      EXPECT_EQ(end, dim);
      // The last block may be partial, hence two eighths.
      EXPECT_LE(most - least, std::max(1U, least / 4)) << dim << " in " << num_slices;
    }
  }
  EXPECT_EQ(dense_slice(14336, 3, 1).begin % 128, 0U);
  EXPECT_EQ(dense_slice(1536, 2, 1).begin % 32, 0U);
}

TEST_F(ArchitectureTest, ExpertsMayBeStackedInOneTensor) {
  test::TinyCheckpointOptions options;
  test::write_tiny_checkpoint(path(), options);
  const auto placement = ExpertPlacement::contiguous(options.num_experts, 2, 1);
  const auto expected = load_ffn_weights(path(), load_model_spec(path()), placement, 1);

  TinyTensors tensors = test::make_tiny_tensors(options);
  for (std::uint32_t layer = 0; layer < options.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    auto& gate_up = tensors[prefix + "gate_up_proj"];
    auto& down = tensors[prefix + "down_proj"];
    gate_up.shape = {options.num_experts, 2 * options.expert_intermediate_dim, options.hidden_dim};
    down.shape = {options.num_experts, options.hidden_dim, options.expert_intermediate_dim};
    const auto move = [&](std::uint32_t expert, const char* name, test::TinyTensor& to) {
      const auto node = tensors.extract(prefix + std::to_string(expert) + "." + name + ".weight");
      to.values.insert(to.values.end(), node.mapped().values.begin(), node.mapped().values.end());
    };
    for (std::uint32_t expert = 0; expert < options.num_experts; ++expert) {
      move(expert, "gate_proj", gate_up);
      move(expert, "up_proj", gate_up);
      move(expert, "down_proj", down);
    }
  }
  test::write_safetensors(path() / "model.safetensors", tensors);
  LoadReport report;
  const auto stacked = load_ffn_weights(path(), load_model_spec(path()), placement, 1, &report);
  EXPECT_EQ(report.bytes_read, 2U * 2 * 3 * 24 * 32 * 2);  // layers, experts, matrices, bf16
  for (std::uint32_t layer = 0; layer < options.num_layers; ++layer) {
    for (std::size_t expert = 0; expert < 2; ++expert) {
      const auto& a = expected.layers[layer].experts[expert];
      const auto& b = stacked.layers[layer].experts[expert];
      for (std::int64_t row = 0; row < a.gate_up.n(); ++row) {
        for (std::int64_t col = 0; col < a.gate_up.k(); ++col) {
          ASSERT_EQ(a.gate_up.at(row, col), b.gate_up.at(row, col));
        }
      }
      for (std::int64_t row = 0; row < a.down.n(); ++row) {
        for (std::int64_t col = 0; col < a.down.k(); ++col) {
          ASSERT_EQ(a.down.at(row, col), b.down.at(row, col));
        }
      }
    }
  }
}

TEST_F(ArchitectureTest, TensorsThatNothingReadsAreRefused) {
  test::TinyCheckpointOptions options;
  test::write_tiny_checkpoint(path(), options);
  TinyTensors tensors = test::make_tiny_tensors(options);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{4}, {1.0F, 0.5F, 0.25F, 0.125F}};
  test::write_safetensors(path() / "model.safetensors", tensors);
  EXPECT_NO_THROW(load_model_spec(path()));
  tensors["model.layers.1.self_attn.q_proj.bias"] = {{32}, std::vector<float>(32, 1.0F)};
  test::write_safetensors(path() / "model.safetensors", tensors);
  try {
    load_model_spec(path());
    FAIL() << "biases were left out";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("tensor 'model.layers.1.self_attn.q_proj.bias' is none that "
                          "Qwen3MoeForCausalLM with this config.json computes with"));
  }
}

TEST_F(ArchitectureTest, DummyWeightsOfEveryKind) {
  for (const auto& config :
       {config_of("LlamaForCausalLM"), config_of("Qwen2ForCausalLM"), config_of("Qwen3ForCausalLM"),
        with_experts("MixtralForCausalLM"), with_experts("MiniMaxM2ForCausalLM")}) {
    const ModelSpec spec = load(config);
    const AttentionWeights weights = load_attention_weights(path(), spec);
    const auto& layer = weights.layers.at(0);
    EXPECT_EQ(layer.full.qkv_bias.size(), spec.qkv_bias ? 4 * 16 + 2 * 2 * 16 : 0) << config;
    // What is added is near 0, what multiplies near 1.
    for (const float value : layer.full.qkv_bias) {
      EXPECT_LT(std::abs(value), 0.5F);
    }
    for (const float value : layer.router.correction_bias) {
      EXPECT_LT(std::abs(value), 0.5F);
    }
    EXPECT_EQ(layer.router.correction_bias.size(), spec.has_correction_bias ? 5 : 0);
    for (const float value : layer.full.q_norm) {
      EXPECT_NEAR(value, 1.0F, 0.5F);
    }
    const auto placement = ExpertPlacement::contiguous(spec.num_placed_experts(2), 2, 1);
    EXPECT_GT(load_ffn_weights(path(), spec, placement, 1).num_bytes(), 0U);
  }
}

}  // namespace
}  // namespace fastfd::model
