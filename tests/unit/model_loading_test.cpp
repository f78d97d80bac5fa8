#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::TemporaryFolder;
using test::TinyCheckpointOptions;
using test::TinyTensors;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

const std::filesystem::path kAtlas = FASTFD_SOURCE_DIR "/models/atlas-moe";

std::string layer_name(std::uint32_t layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest + ".weight";
}

std::string expert_name(std::uint32_t layer, std::uint32_t expert, const std::string& rest) {
  return layer_name(layer, "mlp.experts." + std::to_string(expert) + "." + rest);
}

/// Rows first_row.. of the packed matrix are the tensor.
void expect_packed(const kernels::PackedWeights& packed, const test::TinyTensor& tensor,
                   std::int64_t first_row = 0) {
  const auto cols = static_cast<std::int64_t>(tensor.shape[1]);
  ASSERT_EQ(packed.k(), cols);
  ASSERT_GE(packed.n(), first_row + static_cast<std::int64_t>(tensor.shape[0]));
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    const auto row = first_row + static_cast<std::int64_t>(i) / cols;
    ASSERT_EQ(packed.at(row, static_cast<std::int64_t>(i) % cols).to_float(), tensor.values[i])
        << "row " << row;
  }
}

/// Gate and up rows are interleaved in blocks of 32, see ExpertWeights.
void expect_expert(const kernels::ExpertWeights& expert, const TinyTensors& tensors,
                   std::uint32_t layer, std::uint32_t id) {
  const auto& gate = tensors.at(expert_name(layer, id, "gate_proj"));
  const auto& up = tensors.at(expert_name(layer, id, "up_proj"));
  const auto& down = tensors.at(expert_name(layer, id, "down_proj"));
  const auto hidden = static_cast<std::int64_t>(gate.shape[1]);
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    const auto unit = static_cast<std::int64_t>(i) / hidden;
    const auto col = static_cast<std::int64_t>(i) % hidden;
    const std::int64_t row = unit / 32 * 64 + unit % 32;
    ASSERT_EQ(expert.gate_up.at(row, col).to_float(), gate.values[i]);
    ASSERT_EQ(expert.gate_up.at(row + 32, col).to_float(), up.values[i]);
  }
  const auto intermediate = static_cast<std::int64_t>(down.shape[1]);
  for (std::size_t i = 0; i < down.values.size(); ++i) {
    ASSERT_EQ(expert.down
                  .at(static_cast<std::int64_t>(i) / intermediate,
                      static_cast<std::int64_t>(i) % intermediate)
                  .to_float(),
              down.values[i]);
  }
}

struct FormCase {
  const char* name;
  TinyCheckpointOptions options;
};

void PrintTo(const FormCase& form, std::ostream* out) { *out << form.name; }

std::vector<FormCase> all_forms() {
  TinyCheckpointOptions plain;
  TinyCheckpointOptions tied;
  tied.tied_embeddings = true;
  TinyCheckpointOptions sharded;
  sharded.num_shards = 3;
  TinyCheckpointOptions half;
  half.dtype = "F16";
  half.misalignment = 1;
  TinyCheckpointOptions single;
  single.dtype = "F32";
  single.misalignment = 3;
  TinyCheckpointOptions wide;  // several panels of 64 rows, several blocks of 32 hidden units
  wide.vocab_size = 200;
  wide.hidden_dim = 40;
  wide.num_q_heads = 6;
  wide.num_kv_heads = 3;
  wide.head_dim = 16;
  wide.expert_intermediate_dim = 72;
  wide.num_experts = 5;
  wide.num_layers = 1;
  TinyCheckpointOptions fp8;  // blocks that the matrix fills in part, in both directions
  fp8.fp8 = true;
  fp8.hidden_dim = 160;
  fp8.head_dim = 36;
  fp8.expert_intermediate_dim = 136;
  fp8.misalignment = 1;
  TinyCheckpointOptions fp8_bf16_scales = fp8;
  fp8_bf16_scales.scale_dtype = "BF16";
  fp8_bf16_scales.num_shards = 3;  // scales in other files than their matrices
  return {{"Plain", plain},     {"Tied", tied},
          {"Sharded", sharded}, {"F16", half},
          {"F32", single},      {"Wide", wide},
          {"Fp8", fp8},         {"Fp8WithBf16Scales", fp8_bf16_scales}};
}

class FormTest : public ::testing::TestWithParam<FormCase> {
 protected:
  FormTest() {
    test::write_tiny_checkpoint(folder_.path(), options());
    spec_ = load_model_spec(folder_.path());
    tensors_ = test::make_tiny_tensors(options());
    if (options().dtype == "F16") {
      flush_half_subnormals();
    }
  }
  const TinyCheckpointOptions& options() const { return GetParam().options; }

  /// What the writer of half-precision files does.
  void flush_half_subnormals() {
    for (auto& [name, tensor] : tensors_) {
      for (float& value : tensor.values) {
        value = std::abs(value) < 0x1p-14F ? 0.0F * value : value;
      }
    }
  }

  TemporaryFolder folder_;
  ModelSpec spec_;
  TinyTensors tensors_;
};

TEST_P(FormTest, AttentionWeightsAreTheCheckpoints) {
  const AttentionWeights weights = load_attention_weights(folder_.path(), spec_);
  const auto& embedding = tensors_.at("model.embed_tokens.weight");
  // Of a tied model there is one copy, the packed one.
  ASSERT_EQ(weights.embedding.size(), options().tied_embeddings ? 0 : embedding.values.size());
  for (std::size_t i = 0; i < weights.embedding.size(); ++i) {
    ASSERT_EQ(weights.embedding[i].to_float(), embedding.values[i]);
  }
  expect_packed(weights.lm_head,
                options().tied_embeddings ? embedding : tensors_.at("lm_head.weight"));
  EXPECT_EQ(weights.final_norm, tensors_.at("model.norm.weight").values);
  ASSERT_EQ(weights.layers.size(), options().num_layers);
  const std::int64_t q = std::int64_t{options().num_q_heads} * options().head_dim;
  const std::int64_t kv = std::int64_t{options().num_kv_heads} * options().head_dim;
  for (std::uint32_t i = 0; i < options().num_layers; ++i) {
    const auto tensor = [&](const char* name) { return tensors_.at(layer_name(i, name)); };
    const AttentionLayerWeights& layer = weights.layers[i];
    EXPECT_EQ(layer.input_norm, tensor("input_layernorm").values);
    EXPECT_EQ(layer.full.q_norm, tensor("self_attn.q_norm").values);
    EXPECT_EQ(layer.full.k_norm, tensor("self_attn.k_norm").values);
    EXPECT_EQ(layer.post_norm, tensor("post_attention_layernorm").values);
    ASSERT_EQ(layer.full.qkv.n(), q + 2 * kv);
    expect_packed(layer.full.qkv, tensor("self_attn.q_proj"));
    expect_packed(layer.full.qkv, tensor("self_attn.k_proj"), q);
    expect_packed(layer.full.qkv, tensor("self_attn.v_proj"), q + kv);
    expect_packed(layer.full.out, tensor("self_attn.o_proj"));
    expect_packed(layer.router.weights, tensor("mlp.gate"));
  }
}

TEST_P(FormTest, FfnWeightsAreTheExpertsOfThePlacement) {
  const auto placement = ExpertPlacement::contiguous(options().num_experts, 3, 2);
  for (ServerRank rank = 0; rank < 3; ++rank) {
    const FfnWeights weights = load_ffn_weights(folder_.path(), spec_, placement, rank);
    ASSERT_EQ(weights.layers.size(), options().num_layers);
    const auto& experts = placement.experts_of(rank);
    for (std::uint32_t layer = 0; layer < options().num_layers; ++layer) {
      ASSERT_EQ(weights.layers[layer].experts.size(), experts.size());
      for (std::size_t i = 0; i < experts.size(); ++i) {
        expect_expert(weights.layers[layer].experts[i], tensors_, layer, experts[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, FormTest, ::testing::ValuesIn(all_forms()),
                         [](const auto& row) { return std::string(row.param.name); });

std::uint64_t total_bytes(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  std::uint64_t total = 0;
  for (const auto& name : names) {
    total += checkpoint.tensors().at(name).num_bytes;
  }
  return total;
}

TEST(RoleSplitTest, EachRoleReadsItsOwnTensorsOnly) {
  const ModelSpec spec = load_model_spec(kAtlas);
  const Checkpoint checkpoint = Checkpoint::open(kAtlas);
  std::vector<std::string> expected_of_attention;
  std::vector<std::vector<std::string>> expected_of_ffn(3);
  const auto placement = ExpertPlacement::contiguous(spec.num_experts, 3, 1);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (name.find(".experts.") == std::string::npos) {
      expected_of_attention.push_back(name);
    }
  }
  for (ServerRank rank = 0; rank < 3; ++rank) {
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      for (const std::uint32_t expert : placement.experts_of(rank)) {
        for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
          expected_of_ffn[rank].push_back(expert_name(layer, expert, projection));
        }
      }
    }
  }

  LoadReport attention;
  load_attention_weights(kAtlas, spec, &attention);
  EXPECT_THAT(attention.tensors, Each(Not(HasSubstr(".experts."))));
  EXPECT_THAT(attention.tensors, UnorderedElementsAreArray(expected_of_attention));
  EXPECT_EQ(attention.bytes_read, total_bytes(checkpoint, expected_of_attention));
  std::size_t num_tensors = attention.tensors.size();
  for (ServerRank rank = 0; rank < 3; ++rank) {
    LoadReport ffn;
    load_ffn_weights(kAtlas, spec, placement, rank, &ffn);
    EXPECT_THAT(ffn.tensors, UnorderedElementsAreArray(expected_of_ffn[rank]));
    EXPECT_EQ(ffn.bytes_read, total_bytes(checkpoint, expected_of_ffn[rank]));
    num_tensors += ffn.tensors.size();
  }
  EXPECT_EQ(num_tensors, checkpoint.tensors().size());
}

TEST(RoleSplitTest, ServerWithoutExpertsIsEmpty) {
  const TemporaryFolder folder;
  test::write_tiny_checkpoint(folder.path(), {});
  const ModelSpec spec = load_model_spec(folder.path());
  LoadReport report;
  const FfnWeights weights = load_ffn_weights(
      folder.path(), spec, ExpertPlacement::contiguous(spec.num_experts, 5, 1), 4, &report);
  ASSERT_EQ(weights.layers.size(), spec.num_layers);
  EXPECT_THAT(weights.layers, Each(Field(&FfnLayerWeights::experts, IsEmpty())));
  EXPECT_THAT(report.tensors, IsEmpty());
  EXPECT_EQ(weights.num_bytes(), 0U);
}

TEST(RoleSplitTest, NothingStaysMapped) {
  const TemporaryFolder folder;
  test::write_tiny_checkpoint(folder.path(), {});
  const ModelSpec spec = load_model_spec(folder.path());
  const AttentionWeights attention = load_attention_weights(folder.path(), spec);
  const FfnWeights ffn =
      load_ffn_weights(folder.path(), spec, ExpertPlacement::contiguous(spec.num_experts, 1, 1), 0);
  EXPECT_THAT(test::read_file("/proc/self/maps"), Not(HasSubstr(folder.path().string())));
  EXPECT_GT(attention.num_bytes(), 0U);
  EXPECT_GT(ffn.num_bytes(), 0U);
}

TEST(LoadingTest, SeveralThreadsLoadAtOnce) {
  const ModelSpec spec = load_model_spec(kAtlas);
  const auto placement = ExpertPlacement::contiguous(spec.num_experts, 2, 1);
  std::vector<std::size_t> num_bytes(4);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < 2; ++i) {
      threads.emplace_back(
          [&, i] { num_bytes[i] = load_ffn_weights(kAtlas, spec, placement, i).num_bytes(); });
      threads.emplace_back(
          [&, i] { num_bytes[2 + i] = load_attention_weights(kAtlas, spec).num_bytes(); });
    }
  }
  EXPECT_EQ(num_bytes[0], num_bytes[1]);
  EXPECT_EQ(num_bytes[2], num_bytes[3]);
  EXPECT_GT(num_bytes[0], 0U);
  EXPECT_GT(num_bytes[2], 0U);
}

class LoadingErrorsTest : public ::testing::Test {
 protected:
  LoadingErrorsTest() {
    test::write_tiny_checkpoint(folder_.path(), {});
    spec_ = load_model_spec(folder_.path());
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
  std::string attention_error() const {
    return error_of([&] { load_attention_weights(folder_.path(), spec_); });
  }
  std::string ffn_error() const {
    return error_of([&] {
      load_ffn_weights(folder_.path(), spec_, ExpertPlacement::contiguous(spec_.num_experts, 2, 1),
                       1);
    });
  }
  void write(const TinyTensors& tensors) const {
    test::write_safetensors(folder_.path() / "model.safetensors", tensors);
  }

  TemporaryFolder folder_;
  ModelSpec spec_;
};

TEST_F(LoadingErrorsTest, MissingTensorFailsTheRoleThatNeedsIt) {
  auto tensors = test::make_tiny_tensors({});
  tensors.erase("model.layers.1.self_attn.k_norm.weight");
  write(tensors);
  EXPECT_THAT(attention_error(),
              HasSubstr("tensor 'model.layers.1.self_attn.k_norm.weight' is missing; fetch"));
  EXPECT_EQ(ffn_error(), "no error");

  tensors = test::make_tiny_tensors({});
  tensors.erase("model.layers.0.mlp.experts.3.down_proj.weight");
  write(tensors);
  EXPECT_EQ(attention_error(), "no error");
  EXPECT_THAT(ffn_error(),
              HasSubstr("tensor 'model.layers.0.mlp.experts.3.down_proj.weight' is missing"));
}

TEST_F(LoadingErrorsTest, WrongShapeFailsTheRoleThatNeedsIt) {
  auto tensors = test::make_tiny_tensors({});
  std::swap(tensors["lm_head.weight"].shape[0], tensors["lm_head.weight"].shape[1]);
  write(tensors);
  EXPECT_THAT(attention_error(), HasSubstr("tensor 'lm_head.weight' has shape [32, 96]"));
  EXPECT_EQ(ffn_error(), "no error");
}

TEST_F(LoadingErrorsTest, TruncatedFile) {
  const auto file = folder_.path() / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_THAT(attention_error(), HasSubstr("truncated file"));
  EXPECT_THAT(ffn_error(), HasSubstr("truncated file"));
}

TEST_F(LoadingErrorsTest, PlacementOfAnotherModel) {
  const auto error_of_placement = [&](std::uint32_t num_experts, ServerRank rank) {
    return error_of([&] {
      load_ffn_weights(folder_.path(), spec_, ExpertPlacement::contiguous(num_experts, 2, 1), rank);
    });
  };
  EXPECT_THAT(error_of_placement(5, 0), HasSubstr("a placement of 5 experts can't hold a model of "
                                                  "4; start every server with the same model"));
  EXPECT_THAT(error_of_placement(4, 2), HasSubstr("FFN server 2 of 2"));
}

}  // namespace
}  // namespace fastfd::model
