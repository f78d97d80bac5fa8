// gpt-oss: what config.json means, how its experts lie, MXFP4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::TinyTensor;
using test::TinyTensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kModels = FASTFD_SOURCE_DIR "/tests/reference/models";

std::vector<std::uint32_t> windows(const ModelSpec& spec) {
  std::vector<std::uint32_t> all;
  for (const LayerSpec& layer : spec.layers) {
    all.push_back(layer.window);
  }
  return all;
}

TEST(GptOssTest, ReadsItsConfig) {
  const ModelSpec spec = load_model_spec(kModels / "gpt-oss-mxfp4");
  EXPECT_EQ(spec.stored, StoredQuantization::kMxfp4);
  EXPECT_EQ(spec.expert_dtype, DType::kBFloat16);
  EXPECT_THAT(windows(spec), ElementsAre(20, 0, 20));
  EXPECT_TRUE(spec.qkv_bias && spec.out_bias && spec.has_sinks);
  EXPECT_TRUE(spec.has_router_bias && spec.has_expert_biases);
  EXPECT_TRUE(spec.router.renormalize);
  EXPECT_EQ(spec.router.scoring, kernels::RouterScoring::kSoftmax);
  EXPECT_EQ(spec.expert_activation.kind, kernels::GatedActivation::kClampedSwiglu);
  EXPECT_EQ(spec.expert_activation.alpha, 1.702F);
  EXPECT_EQ(spec.expert_activation.limit, 7.0F);
  EXPECT_EQ(spec.rope.theta, 150000.0);
  EXPECT_EQ(spec.rope.scaling, kernels::RopeScaling::kYarn);
  EXPECT_FALSE(spec.rope.truncate);
}

TEST(GptOssTest, AssumesWhatTheConfigurationAssumes) {
  const test::TemporaryFolder folder;
  const nlohmann::json config = {{"architectures", {"GptOssForCausalLM"}},
                                 {"vocab_size", 96},
                                 {"hidden_size", 64},
                                 {"intermediate_size", 32},
                                 {"num_hidden_layers", 3},
                                 {"num_attention_heads", 16},
                                 {"num_local_experts", 4},
                                 {"num_experts_per_tok", 2},
                                 {"max_position_embeddings", 131072}};
  test::write_file(folder.path() / "config.json", config.dump());
  const ModelSpec spec = load_model_spec(folder.path(), {.format = LoadFormat::kDummy});
  EXPECT_THAT(windows(spec), ElementsAre(128, 0, 128));
  EXPECT_EQ(spec.head_dim, 64U);
  EXPECT_EQ(spec.num_kv_heads, 8U);
  EXPECT_EQ(spec.rms_eps, 1e-5F);
  EXPECT_EQ(spec.rope.theta, 150000.0);
  EXPECT_EQ(spec.rope.scaling, kernels::RopeScaling::kYarn);
  EXPECT_EQ(spec.rope.factor, 32.0);
  EXPECT_EQ(spec.rope.original_max_positions, 4096.0);
  EXPECT_NEAR(spec.rope.attention_factor, 0.1 * std::log(32.0) + 1.0, 1e-12);
  EXPECT_FALSE(spec.rope.truncate);
  // Made-up weights of both roles.
  const auto ffn = load_ffn_weights(folder.path(), spec, ExpertPlacement::contiguous(4, 2, 1), 1);
  ASSERT_EQ(ffn.layers[0].experts.size(), 2U);
  EXPECT_EQ(ffn.layers[0].experts[0].gate_up_bias.size(), 64U);
  EXPECT_EQ(load_attention_weights(folder.path(), spec).layers[2].full.sinks.size(), 16U);
}

TEST(GptOssTest, ReadsThePublishedSizes) {
  const ModelSpec spec = load_model_spec(FASTFD_SOURCE_DIR "/configs/models/gpt-oss-20b",
                                         {.format = LoadFormat::kDummy});
  EXPECT_EQ(spec.num_layers, 24U);
  EXPECT_EQ(spec.num_experts, 32U);
  EXPECT_EQ(spec.experts_per_token, 4U);
  EXPECT_EQ(spec.expert_intermediate_dim, 2880U);
  EXPECT_EQ(spec.smallest_window(), 128U);
  EXPECT_EQ(spec.stored, StoredQuantization::kMxfp4);
}

/// Where unit `j` of gate is among the packed rows; up's is 32 further.
std::int64_t packed_row(std::int64_t j) { return j / 32 * 64 + j % 32; }

std::vector<float> read_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo& tensor = checkpoint.tensors().at(name);
  std::vector<float> values(tensor.num_elements);
  checkpoint.read(tensor, 0, values.size(), values.data());
  return values;
}

/// Gate is even and up odd, in the files' rows (packed) or columns (transposed).
void expect_experts(const std::string& model, std::uint32_t layer, bool is_transposed) {
  SCOPED_TRACE(model);
  const ModelSpec spec = load_model_spec(kModels / model);
  Checkpoint checkpoint = Checkpoint::open(kModels / model);
  checkpoint.use_mxfp4();
  const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
  const auto gate_up = read_tensor(checkpoint, prefix + "gate_up_proj");
  const auto down = read_tensor(checkpoint, prefix + "down_proj");
  const auto gate_up_bias = read_tensor(checkpoint, prefix + "gate_up_proj_bias");
  const auto down_bias = read_tensor(checkpoint, prefix + "down_proj_bias");
  const auto hidden = static_cast<std::int64_t>(spec.hidden_dim);
  const auto units = static_cast<std::int64_t>(spec.expert_intermediate_dim);
  const auto at = [](const std::vector<float>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  };
  const auto weights = load_ffn_weights(kModels / model, spec,
                                        ExpertPlacement::contiguous(spec.num_experts, 1, 1), 0);
  for (std::int64_t id = 0; id < spec.num_experts; ++id) {
    const auto& expert = weights.layers[layer].experts[static_cast<std::size_t>(id)];
    for (std::int64_t j = 0; j < units; ++j) {
      for (std::int64_t h = 0; h < hidden; ++h) {
        const auto stored = [&](std::int64_t row) {
          return at(gate_up, is_transposed ? (id * hidden + h) * 2 * units + row
                                           : (id * 2 * units + row) * hidden + h);
        };
        ASSERT_EQ(expert.gate_up.at(packed_row(j), h).to_float(), stored(2 * j));
        ASSERT_EQ(expert.gate_up.at(packed_row(j) + 32, h).to_float(), stored(2 * j + 1));
        ASSERT_EQ(expert.down.at(h, j).to_float(),
                  at(down, is_transposed ? (id * units + j) * hidden + h
                                         : (id * hidden + h) * units + j));
      }
      ASSERT_EQ(at(expert.gate_up_bias, packed_row(j)), at(gate_up_bias, id * 2 * units + 2 * j));
      ASSERT_EQ(at(expert.gate_up_bias, packed_row(j) + 32),
                at(gate_up_bias, id * 2 * units + 2 * j + 1));
    }
    for (std::int64_t h = 0; h < hidden; ++h) {
      ASSERT_EQ(at(expert.down_bias, h), at(down_bias, id * hidden + h));
    }
  }
}

TEST(GptOssTest, GateAndUpAlternate) {
  expect_experts("gpt-oss", 1, true);
  expect_experts("gpt-oss-mxfp4", 0, false);
  expect_experts("gpt-oss-mxfp4", 1, true);  // not quantised
}

TEST(GptOssTest, AnFfnServerReadsItsOwnExperts) {
  const std::filesystem::path folder = kModels / "gpt-oss-mxfp4";
  const ModelSpec spec = load_model_spec(folder);
  LoadReport report;
  load_ffn_weights(folder, spec, ExpertPlacement::contiguous(3, 3, 1), 2, &report);
  EXPECT_THAT(report.tensors, Contains("model.layers.0.mlp.experts.gate_up_proj_blocks"));
  EXPECT_THAT(report.tensors, Contains("model.layers.0.mlp.experts.down_proj_scales"));
  EXPECT_THAT(report.tensors, Contains("model.layers.1.mlp.experts.down_proj"));
  EXPECT_THAT(report.tensors, Each(HasSubstr(".experts.")));
  constexpr std::uint64_t kElements = 3 * 64 * 32;
  constexpr std::uint64_t kPacked = kElements / 2 + kElements / 32;
  constexpr std::uint64_t kBiases = (2 * 32 + 64) * sizeof(bf16);
  EXPECT_EQ(report.bytes_read, 2 * kPacked + kElements * sizeof(bf16) + 3 * kBiases);
  LoadReport attention;
  load_attention_weights(folder, spec, &attention);
  EXPECT_THAT(attention.tensors, Each(Not(HasSubstr(".experts."))));
}

/// One tensor in MXFP4 whose groups hold every value there is.
class Mxfp4Test : public ::testing::Test {
 protected:
  Mxfp4Test() {
    TinyTensor blocks{.shape = {1, 2, 2, 16}, .values = {}, .dtype = "U8"};
    for (std::uint32_t group = 0; group < 4; ++group) {
      for (std::uint32_t byte = 0; byte < 16; ++byte) {
        blocks.bits.push_back(static_cast<std::uint8_t>((15 - byte) << 4U | byte));
      }
    }
    tensors_["w_blocks"] = blocks;
    tensors_["w_scales"] = {
        .shape = {1, 2, 2}, .values = {}, .dtype = "U8", .bits = {127, 0, 252, 120}};
  }

  Checkpoint open() const {
    test::write_safetensors(folder_.path() / "model.safetensors", tensors_);
    Checkpoint checkpoint = Checkpoint::open(folder_.path());
    checkpoint.use_mxfp4();
    return checkpoint;
  }
  std::string error(const std::function<void(const Checkpoint&)>& use = [](const auto&) {}) const {
    try {
      use(open());
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }

  TinyTensors tensors_;
  test::TemporaryFolder folder_;
};

// Values by the OCP Microscaling specification: sign, two bits of exponent with bias 1, one of
// mantissa.
TEST_F(Mxfp4Test, UnpacksEveryValue) {
  const std::array<float, 8> magnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const std::array<int, 4> exponents = {0, -127, 125, -7};
  const Checkpoint checkpoint = open();
  const TensorInfo& tensor = checkpoint.require("w", std::array<std::uint64_t, 3>{1, 2, 64});
  std::vector<float> all(128);
  std::vector<bf16> rounded(128);
  checkpoint.read(tensor, 0, all.size(), all.data());
  checkpoint.read(tensor, 0, all.size(), rounded.data());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t byte = i / 2 % 16;
    const std::size_t bits = i % 2 == 0 ? byte : 15 - byte;
    const float magnitude = std::ldexp(magnitudes[bits % 8], exponents[i / 32]);
    ASSERT_EQ(all[i], bits < 8 ? magnitude : -magnitude) << i;
    ASSERT_EQ(std::signbit(all[i]), bits >= 8) << i;
    ASSERT_EQ(rounded[i].to_float(), all[i]) << i;
  }
  // From the middle of a byte to the middle of another.
  std::vector<float> part(37);
  checkpoint.read(tensor, 31, part.size(), part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 31));
}

TEST_F(Mxfp4Test, ScalesThatAreNoneAreDamage) {
  const auto read = [](const Checkpoint& checkpoint) {
    const TensorInfo& tensor = checkpoint.tensors().at("w");
    std::vector<float> values(tensor.num_elements);
    checkpoint.read(tensor, 0, values.size(), values.data());
  };
  tensors_["w_scales"].bits[2] = 0xff;
  EXPECT_THAT(error(read), HasSubstr("tensor 'w_scales' holds 0xff, which is NaN, as scale 2"));
  tensors_["w_scales"].bits[2] = 253;
  EXPECT_THAT(error(read), HasSubstr("holds 0xfd, which is beyond what bf16 holds, as scale 2"));
}

TEST_F(Mxfp4Test, PartsThatDontFitAreRefused) {
  const TinyTensors whole = tensors_;
  tensors_.erase("w_scales");
  EXPECT_THAT(error(), AllOf(HasSubstr("tensor 'w_blocks' is MXFP4, but its scales 'w_scales' are "
                                       "missing"),
                             HasSubstr("fetch the checkpoint")));
  tensors_ = whole;
  tensors_.erase("w_blocks");
  EXPECT_THAT(error(), HasSubstr("tensor 'w_scales' are scales, but 'w_blocks' is missing"));
  tensors_ = whole;
  tensors_["w_scales"].shape = {1, 4};
  EXPECT_THAT(error(), HasSubstr("tensor 'w_scales' is U8 of shape [1, 4], but 'w_blocks' needs U8 "
                                 "scales of shape [1, 2, 2]"));
  tensors_ = whole;
  tensors_["w_blocks"].shape = {1, 2, 4, 8};
  EXPECT_THAT(error(), HasSubstr("tensor 'w_blocks' is U8 of shape [1, 2, 4, 8], but MXFP4 blocks "
                                 "are U8 with 16 bytes a group"));
  tensors_ = whole;
  tensors_["w"] = {.shape = {2}, .values = {1.0F, 2.0F}};
  EXPECT_THAT(error(), HasSubstr("tensor 'w_blocks' are blocks of 'w', which is there as well"));
}

}  // namespace
}  // namespace fastfd::model
