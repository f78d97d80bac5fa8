// What loading makes resident: a role's own weights, and hardly more while they are packed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "support/memory_status.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::peak_growth;
using test::TemporaryFolder;
using test::TinyCheckpointOptions;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

std::uint64_t element_bytes(const std::string& dtype) {
  return dtype == "F32" ? 4 : dtype == "F8_E4M3" ? 1 : 2;
}

/// A large checkpoint whose data the file system stores as holes: all zeros.
void write_sparse_checkpoint(const std::filesystem::path& dir,
                             const TinyCheckpointOptions& options) {
  test::write_file(dir / "config.json", test::make_tiny_config(options));
  nlohmann::json header;
  std::uint64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape,
                       const std::string& dtype) {
    std::uint64_t num_bytes = element_bytes(dtype);
    for (const std::uint64_t dim : shape) {
      num_bytes *= dim;
    }
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + num_bytes}}};
    end += num_bytes;
  };
  const auto add_projection = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    add(name, {rows, cols}, options.fp8 ? "F8_E4M3" : options.dtype);
    if (options.fp8) {
      add(name + "_scale_inv", {(rows + 127) / 128, (cols + 127) / 128}, "F32");
    }
  };
  const std::uint64_t hidden = options.hidden_dim;
  const std::uint64_t q = std::uint64_t{options.num_q_heads} * options.head_dim;
  const std::uint64_t kv = std::uint64_t{options.num_kv_heads} * options.head_dim;
  add("model.embed_tokens.weight", {options.vocab_size, hidden}, options.dtype);
  add("model.norm.weight", {hidden}, options.dtype);
  if (!options.tied_embeddings) {
    add("lm_head.weight", {options.vocab_size, hidden}, options.dtype);
  }
  for (std::uint32_t layer = 0; layer < options.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {hidden}, options.dtype);
    add(prefix + "post_attention_layernorm.weight", {hidden}, options.dtype);
    add(prefix + "self_attn.q_norm.weight", {options.head_dim}, options.dtype);
    add(prefix + "self_attn.k_norm.weight", {options.head_dim}, options.dtype);
    add_projection(prefix + "self_attn.q_proj.weight", q, hidden);
    add_projection(prefix + "self_attn.k_proj.weight", kv, hidden);
    add_projection(prefix + "self_attn.v_proj.weight", kv, hidden);
    add_projection(prefix + "self_attn.o_proj.weight", hidden, q);
    add(prefix + "mlp.gate.weight", {options.num_experts, hidden}, options.dtype);
    for (std::uint32_t expert = 0; expert < options.num_experts; ++expert) {
      const std::string expert_prefix = prefix + "mlp.experts." + std::to_string(expert) + ".";
      add_projection(expert_prefix + "gate_proj.weight", options.expert_intermediate_dim, hidden);
      add_projection(expert_prefix + "up_proj.weight", options.expert_intermediate_dim, hidden);
      add_projection(expert_prefix + "down_proj.weight", hidden, options.expert_intermediate_dim);
    }
  }
  const std::string head = test::raw_safetensors(header.dump(), 0);
  test::write_file(dir / "model.safetensors", head);
  std::filesystem::resize_file(dir / "model.safetensors", head.size() + end);
}

TEST(MemoryTest, OtherRolesTensorsNeverBecomeResident) {
  TinyCheckpointOptions options;
  options.dtype = "F32";
  options.num_layers = 1;
  options.hidden_dim = 256;
  options.num_experts = 16;
  options.expert_intermediate_dim = 8192;  // 24 MiB an expert, 384 MiB in all
  const TemporaryFolder folder;
  write_sparse_checkpoint(folder.path(), options);
  ASSERT_GT(std::filesystem::file_size(folder.path() / "model.safetensors"), 384 * kMib);
  const ModelSpec spec = load_model_spec(folder.path());

  // Limits leave room for the shadow memory of sanitizers.
  EXPECT_LT(peak_growth([&] { load_attention_weights(folder.path(), spec); }), 64 * kMib);
  const auto placement = ExpertPlacement::contiguous(options.num_experts, 16, 1);
  EXPECT_LT(peak_growth([&] { load_ffn_weights(folder.path(), spec, placement, 3); }), 192 * kMib);
  // The measure itself works: reading everything shows.
  std::vector<FfnWeights> everything;
  EXPECT_GT(peak_growth([&] {
              everything.push_back(load_ffn_weights(
                  folder.path(), spec, ExpertPlacement::contiguous(options.num_experts, 1, 1), 0));
            }),
            192 * kMib);
  EXPECT_GE(everything[0].num_bytes(), 192 * kMib);
}

/// Loads with `load`, and expects that at no time more than 1.1 times what the weights take was
/// resident, mapped parts of files included.
template <typename Load>
void expect_little_more_than_weights(const Load& load, std::uint64_t expected_bytes) {
  std::uint64_t num_bytes = 0;
  std::uint64_t kept = 0;
  const std::uint64_t before = test::memory_status("VmRSS");
  const std::uint64_t peak = peak_growth([&] {
    const auto weights = load();
    num_bytes = weights.num_bytes();
    kept = test::memory_status("VmRSS");
  });
  kept = kept > before ? kept - before : 0;
  const auto mib = [](std::uint64_t bytes) {
    return std::to_string(static_cast<double>(bytes) / static_cast<double>(kMib));
  };
  const std::string figures = "weights " + mib(num_bytes) + " MiB, resident " + mib(kept) +
                              " MiB, at the peak " + mib(peak) + " MiB";
  ::testing::Test::RecordProperty("figures", figures);
  EXPECT_EQ(num_bytes, expected_bytes) << figures;
  EXPECT_GE(peak * 100, num_bytes * 99) << figures;  // the measure works
  if (!test::kHasSanitizer) {
    EXPECT_LE(peak * 10, num_bytes * 11) << figures;
    EXPECT_LE(kept * 100, num_bytes * 103) << figures;
  }
}

struct PeakCase {
  const char* name;
  const char* dtype;  ///< of what is not quantised
  bool fp8;
};

void PrintTo(const PeakCase& peak, std::ostream* out) { *out << peak.name; }

class PeakTest : public ::testing::TestWithParam<PeakCase> {
 protected:
  PeakTest() {
    options_.dtype = GetParam().dtype;
    options_.fp8 = GetParam().fp8;
    options_.hidden_dim = 512;
    options_.head_dim = 128;
  }
  ModelSpec write() const {
    write_sparse_checkpoint(folder_.path(), options_);
    return load_model_spec(folder_.path());
  }

  TinyCheckpointOptions options_;
  TemporaryFolder folder_;
};

TEST_P(PeakTest, FfnServer) {
  options_.num_experts = 128;
  options_.expert_intermediate_dim = 512;  // 1.5 MiB an expert and layer in bf16
  const ModelSpec spec = write();
  const auto placement = ExpertPlacement::contiguous(options_.num_experts, 2, 1);
  expect_little_more_than_weights(
      [&] { return load_ffn_weights(folder_.path(), spec, placement, 1); },
      std::uint64_t{options_.num_layers} * 64 * 3 * 512 * 512 * sizeof(bf16));
}

TEST_P(PeakTest, AttentionServer) {
  options_.vocab_size = 96 * 1024;
  const ModelSpec spec = write();
  const std::uint64_t vocabulary = std::uint64_t{options_.vocab_size} * 512 * sizeof(bf16);
  const std::uint64_t layer = (std::uint64_t{8 + 4} * 128 * 512 + 64 * 512) * sizeof(bf16) +
                              (2 * 512 + 2 * 128) * sizeof(float);
  expect_little_more_than_weights(
      [&] { return load_attention_weights(folder_.path(), spec); },
      2 * vocabulary + options_.num_layers * layer + 512 * sizeof(float));
}

// The embedding is read from the packed LM head: there is one copy.
TEST_P(PeakTest, AttentionServerOfATiedModel) {
  options_.vocab_size = 192 * 1024;
  options_.tied_embeddings = true;
  const ModelSpec spec = write();
  const std::uint64_t vocabulary = std::uint64_t{options_.vocab_size} * 512 * sizeof(bf16);
  const std::uint64_t layer = (std::uint64_t{8 + 4} * 128 * 512 + 64 * 512) * sizeof(bf16) +
                              (2 * 512 + 2 * 128) * sizeof(float);
  expect_little_more_than_weights([&] { return load_attention_weights(folder_.path(), spec); },
                                  vocabulary + options_.num_layers * layer + 512 * sizeof(float));
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, PeakTest,
                         ::testing::Values(PeakCase{"Bf16", "BF16", false},
                                           PeakCase{"Float32", "F32", false},
                                           PeakCase{"Fp8", "BF16", true}),
                         [](const auto& row) { return std::string(row.param.name); });

/// Zeros in the form of gpt-oss: experts of a layer are one tensor, packed or transposed.
void write_sparse_gpt_oss(const std::filesystem::path& dir, bool is_packed, std::uint64_t experts,
                          std::uint64_t dim) {
  nlohmann::json config = {{"architectures", {"GptOssForCausalLM"}},
                           {"vocab_size", 96},
                           {"hidden_size", dim},
                           {"intermediate_size", dim},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", 2},
                           {"num_key_value_heads", 1},
                           {"num_local_experts", experts},
                           {"num_experts_per_tok", 2},
                           {"max_position_embeddings", 128}};
  if (is_packed) {
    config["quantization_config"] = {{"quant_method", "mxfp4"}};
  }
  test::write_file(dir / "config.json", config.dump());
  nlohmann::json header;
  std::uint64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape,
                       const std::string& dtype = "BF16") {
    std::uint64_t num_bytes = dtype == "U8" ? 1 : 2;
    for (const std::uint64_t size : shape) {
      num_bytes *= size;
    }
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + num_bytes}}};
    end += num_bytes;
  };
  add("model.embed_tokens.weight", {96, dim});
  add("lm_head.weight", {96, dim});
  add("model.norm.weight", {dim});
  const std::string layer = "model.layers.0.";
  for (const auto& [name, rows] : {std::pair{"q_proj", 128}, {"k_proj", 64}, {"v_proj", 64}}) {
    add(layer + "self_attn." + name + ".weight", {static_cast<std::uint64_t>(rows), dim});
    add(layer + "self_attn." + name + ".bias", {static_cast<std::uint64_t>(rows)});
  }
  add(layer + "self_attn.o_proj.weight", {dim, 128});
  add(layer + "self_attn.o_proj.bias", {dim});
  add(layer + "self_attn.sinks", {2});
  add(layer + "input_layernorm.weight", {dim});
  add(layer + "post_attention_layernorm.weight", {dim});
  add(layer + "mlp.router.weight", {experts, dim});
  add(layer + "mlp.router.bias", {experts});
  for (const auto& [name, rows] : {std::pair{"gate_up_proj", 2 * dim}, {"down_proj", dim}}) {
    const std::string tensor = layer + "mlp.experts." + name;
    add(tensor + "_bias", {experts, rows});
    if (is_packed) {
      add(tensor + "_blocks", {experts, rows, dim / 32, 16}, "U8");
      add(tensor + "_scales", {experts, rows, dim / 32}, "U8");
    } else {
      add(tensor, {experts, dim, rows});
    }
  }
  const std::string head = test::raw_safetensors(header.dump(), 0);
  test::write_file(dir / "model.safetensors", head);
  std::filesystem::resize_file(dir / "model.safetensors", head.size() + end);
}

TEST(MemoryTest, StackedExpertsArePackedOneByOne) {
  constexpr std::uint64_t kExperts = 128;
  constexpr std::uint64_t kDim = 512;
  for (const bool is_packed : {true, false}) {
    SCOPED_TRACE(is_packed ? "MXFP4" : "transposed");
    const TemporaryFolder folder;
    write_sparse_gpt_oss(folder.path(), is_packed, kExperts, kDim);
    const ModelSpec spec = load_model_spec(folder.path());
    const auto placement = ExpertPlacement::contiguous(kExperts, 2, 1);
    expect_little_more_than_weights(
        [&] { return load_ffn_weights(folder.path(), spec, placement, 1); },
        kExperts / 2 * (3 * kDim * kDim * sizeof(bf16) + 3 * kDim * sizeof(float)));
  }
}

// Qwen3-30B-A3B has 57 GiB of experts: a server holds the ones that live on it.
TEST(MemoryTest, AnFfnServerOfALargeModelHoldsItsShare) {
  const std::filesystem::path folder = FASTFD_SOURCE_DIR "/configs/models/qwen3-30b-a3b";
  const ModelSpec spec = load_model_spec(folder, {.format = LoadFormat::kDummy, .num_layers = 1});
  const auto placement = ExpertPlacement::contiguous(spec.num_experts, 8, 1);
  expect_little_more_than_weights([&] { return load_ffn_weights(folder, spec, placement, 3); },
                                  std::uint64_t{16} * 3 * 2048 * 768 * sizeof(bf16));
}

}  // namespace
}  // namespace fastfd::model
