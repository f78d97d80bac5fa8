// Block FP8 checkpoints: what is quantised, what is refused, what experts become.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::TinyCheckpointOptions;
using test::TinyTensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kDown = "model.layers.1.mlp.experts.3.down_proj.weight";
constexpr const char* kDownScales = "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv";
constexpr const char* kOut = "model.layers.0.self_attn.o_proj.weight";

class Fp8Test : public ::testing::Test {
 protected:
  Fp8Test() {
    options_.fp8 = true;
    options_.hidden_dim = 256;
    options_.expert_intermediate_dim = 128;
  }

  void write(const std::function<void(TinyTensors&)>& change = [](TinyTensors&) {}) const {
    auto tensors = test::make_tiny_tensors(options_);
    change(tensors);
    test::write_file(folder_.path() / "config.json", test::make_tiny_config(options_));
    test::write_safetensors(folder_.path() / "model.safetensors", tensors);
  }
  ModelSpec load_spec(std::optional<DType> expert_dtype = std::nullopt) const {
    return load_model_spec(folder_.path(), {.expert_dtype = expert_dtype});
  }
  template <typename Action>
  static std::string error_of(const Action& action) {
    try {
      action();
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string spec_error() const {
    return error_of([&] { load_spec(); });
  }
  /// Of the server that holds the last expert.
  std::string ffn_error() const {
    return error_of([&] {
      load_ffn_weights(folder_.path(), load_spec(DType::kBFloat16),
                       ExpertPlacement::contiguous(options_.num_experts, 2, 1), 1);
    });
  }

  TinyCheckpointOptions options_;
  test::TemporaryFolder folder_;
};

TEST_F(Fp8Test, ExpertsAreWhatTheCheckpointHasUnlessToldOtherwise) {
  write();
  EXPECT_EQ(load_spec().stored, StoredQuantization::kFp8Blocks);
  EXPECT_EQ(load_spec().expert_dtype, DType::kFloat8E4M3);
  EXPECT_EQ(load_spec(DType::kBFloat16).expert_dtype, DType::kBFloat16);
  // One expert that was left out: none is requantised without being asked for.
  write([&](TinyTensors& tensors) {
    tensors.at(kDown).dtype = "BF16";
    tensors.at(kDown).bits.clear();
    tensors.erase(kDownScales);
  });
  EXPECT_EQ(load_spec().expert_dtype, DType::kBFloat16);
  EXPECT_EQ(load_spec(DType::kFloat8E4M3).expert_dtype, DType::kFloat8E4M3);
  EXPECT_EQ(ffn_error(), "no error");
  // Blocks that gate and up would share.
  options_.expert_intermediate_dim = 192;
  write();
  EXPECT_EQ(load_spec().expert_dtype, DType::kBFloat16);
  options_.fp8 = false;
  write();
  EXPECT_EQ(load_spec().expert_dtype, DType::kBFloat16);
  EXPECT_EQ(load_spec().stored, StoredQuantization::kNone);
}

TEST_F(Fp8Test, DummyExpertsAreWhatTheConfigSays) {
  write();
  std::filesystem::remove(folder_.path() / "model.safetensors");
  LoadOptions load{.format = LoadFormat::kDummy, .expert_dtype = std::nullopt};
  EXPECT_EQ(load_model_spec(folder_.path(), load).expert_dtype, DType::kFloat8E4M3);
  load.expert_dtype = DType::kBFloat16;
  EXPECT_EQ(load_model_spec(folder_.path(), load).expert_dtype, DType::kBFloat16);
}

TEST_F(Fp8Test, TheCpuHoldsNoFp8) {
  write();
  const ModelSpec spec = load_spec(DType::kFloat8E4M3);
  EXPECT_THAT(error_of([&] {
                load_ffn_weights(folder_.path(), spec,
                                 ExpertPlacement::contiguous(options_.num_experts, 1, 1), 0);
              }),
              HasSubstr("experts in float8_e4m3 need a GPU; use quantization auto or none"));
}

TEST_F(Fp8Test, BitsAndScalesAreTheFiles) {
  write();
  Checkpoint checkpoint = Checkpoint::open(folder_.path());
  checkpoint.use_block_scales();
  const auto tensors = test::make_tiny_tensors(options_);
  const TensorInfo& matrix = checkpoint.require(kDown, std::vector<std::uint64_t>{256, 128});
  std::vector<std::uint8_t> bits(256 * 128);
  std::vector<float> scales(2);
  checkpoint.read_fp8(matrix, bits.data(), scales.data());
  EXPECT_EQ(bits, tensors.at(kDown).bits);
  EXPECT_EQ(scales, tensors.at(kDownScales).values);
  // Any part, dequantised: the middle of a row to the middle of another, over a block's border.
  std::vector<float> part(3 * 128);
  checkpoint.read(matrix, 126 * 128 + 64, part.size(), part.data());
  for (std::size_t i = 0; i < part.size(); ++i) {
    ASSERT_EQ(bf16::from_float(part[i]).to_float(), tensors.at(kDown).values[126 * 128 + 64 + i]);
  }
}

TEST_F(Fp8Test, TheReportNamesScalesToo) {
  write();
  LoadReport report;
  load_ffn_weights(folder_.path(), load_spec(DType::kBFloat16),
                   ExpertPlacement::contiguous(options_.num_experts, 4, 1), 3, &report);
  EXPECT_THAT(report.tensors, Contains(std::string(kDownScales)));
  const std::size_t matrix = std::size_t{256} * 128 + 2 * sizeof(float);
  EXPECT_EQ(report.bytes_read, options_.num_layers * 3 * matrix);
}

TEST_F(Fp8Test, MissingScales) {
  write([](TinyTensors& tensors) { tensors.erase(kDownScales); });
  EXPECT_THAT(spec_error(),
              AllOf(HasSubstr("model.safetensors: tensor '" + std::string(kDown) +
                              "' is F8_E4M3, but its scales '" + kDownScales + "' are missing"),
                    HasSubstr("fetch the checkpoint")));
}

TEST_F(Fp8Test, ScalesOfAnotherShape) {
  write([](TinyTensors& tensors) { tensors.at(kDownScales).shape = {1, 2}; });
  EXPECT_THAT(spec_error(),
              HasSubstr("tensor '" + std::string(kDownScales) + "' has shape [1, 2], but '" +
                        kDown + "' of shape [256, 128] has [2, 1] blocks of 128 x 128"));
}

TEST_F(Fp8Test, ScalesOfATypeThatIsNone) {
  write([](TinyTensors& tensors) {
    tensors.at(kDownScales).dtype = "U8";
    tensors.at(kDownScales).bits = {127, 127};
  });
  EXPECT_THAT(spec_error(), HasSubstr("tensor '" + std::string(kDownScales) + "' has dtype U8"));
}

TEST_F(Fp8Test, ScalesOfWhatIsNotQuantised) {
  write([](TinyTensors& tensors) {
    tensors.at(kOut).dtype = "BF16";
    tensors.at(kOut).bits.clear();
  });
  EXPECT_THAT(spec_error(),
              HasSubstr("tensor '" + std::string(kOut) + "_scale_inv' are scales, but '" + kOut +
                        "' is BF16, not F8_E4M3; fetch"));
  write([](TinyTensors& tensors) { tensors["lost.weight_scale_inv"] = tensors.at(kDownScales); });
  EXPECT_THAT(spec_error(), HasSubstr("'lost.weight_scale_inv' are scales, but 'lost.weight' is "
                                      "missing"));
}

TEST_F(Fp8Test, VectorsCantBeFp8) {
  write([](TinyTensors& tensors) {
    auto& norm = tensors.at("model.norm.weight");
    norm.dtype = "F8_E4M3";
    norm.bits.assign(norm.values.size(), 0x38);
    tensors["model.norm.weight_scale_inv"] = {{2}, {1.0F, 1.0F}, "F32", {}};
  });
  EXPECT_THAT(spec_error(), HasSubstr("tensor 'model.norm.weight' of shape [256] is F8_E4M3, which "
                                      "only matrices can be"));
}

TEST_F(Fp8Test, WithoutQuantizationConfigFp8IsRefused) {
  write();
  options_.fp8 = false;
  test::write_file(folder_.path() / "config.json", test::make_tiny_config(options_));
  EXPECT_THAT(spec_error(),
              HasSubstr("has dtype F8_E4M3, which can't be served; use a checkpoint in "
                        "BF16, F16 or F32, or in F8_E4M3 with a quantization_config"));
}

TEST_F(Fp8Test, NanIsDamage) {
  for (const int nan : {0x7f, 0xff}) {
    write([&](TinyTensors& tensors) {
      tensors.at(kDown).bits[130 * 128 + 7] = static_cast<std::uint8_t>(nan);
    });
    EXPECT_EQ(spec_error(), "no error");  // no data is read
    EXPECT_THAT(ffn_error(), HasSubstr("tensor '" + std::string(kDown) + "' holds NaN (byte 0x" +
                                       (nan == 0x7f ? "7f" : "ff") + ") in row 130, column 7"));
  }
  write([](TinyTensors& tensors) {
    tensors.at(kDownScales).values[1] = std::numeric_limits<float>::infinity();
  });
  EXPECT_THAT(ffn_error(), HasSubstr("tensor '" + std::string(kDownScales) +
                                     "' holds inf in row 1, column 0: the file is damaged"));
}

}  // namespace
}  // namespace fastfd::model
