#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "fastfd/core/check.h"
#include "fastfd/model/model.h"
#include "model/architecture.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::TemporaryFolder;
using test::TinyCheckpointOptions;
using test::write_file;
using test::write_tiny_checkpoint;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kAtlas = FASTFD_SOURCE_DIR "/models/atlas-moe";

TEST(ModelSpecTest, ReadsTheShippedModel) {
  const ModelSpec spec = load_model_spec(kAtlas);
  EXPECT_EQ(spec.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(spec.vocab_size, 6144U);
  EXPECT_EQ(spec.hidden_dim, 256U);
  EXPECT_EQ(spec.num_layers, 6U);
  EXPECT_EQ(spec.num_q_heads, 4U);
  EXPECT_EQ(spec.num_kv_heads, 2U);
  EXPECT_EQ(spec.head_dim, 64U);
  EXPECT_EQ(spec.max_positions, 2048U);
  EXPECT_EQ(spec.rms_eps, 1e-6F);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_EQ(spec.rope.scaling, kernels::RopeScaling::kNone);
  EXPECT_EQ(spec.qk_norm, kernels::QkNorm::kPerHead);
  EXPECT_FALSE(spec.has_layer(FfnKind::kDense));
  EXPECT_EQ(spec.num_layers_of(AttentionKind::kFull), 6U);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_EQ(spec.num_experts, 16U);
  EXPECT_EQ(spec.experts_per_token, 4U);
  EXPECT_EQ(spec.expert_intermediate_dim, 128U);
  EXPECT_TRUE(spec.router.renormalize);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(6143, 6141));
  EXPECT_FALSE(spec.default_do_sample);
}

/// A tiny model whose config files the tests change.
class ModelConfigTest : public ::testing::Test {
 protected:
  ModelConfigTest() {
    write_tiny_checkpoint(folder_.path(), {});
    config_ = nlohmann::json::parse(test::make_tiny_config({}));
  }

  ModelSpec load() const {
    write_file(folder_.path() / "config.json", config_.dump());
    return load_model_spec(folder_.path());
  }
  std::string error() const {
    try {
      load();
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }
  void write_generation_config(const std::string& text) const {
    write_file(folder_.path() / "generation_config.json", text);
  }

  TemporaryFolder folder_;
  nlohmann::json config_;
};

TEST_F(ModelConfigTest, GenerationConfigOverridesAndSuppliesDefaults) {
  config_["eos_token_id"] = 3;
  write_generation_config(
      R"({"eos_token_id":[5,4],"do_sample":true,"temperature":0.7,"top_p":0.8,"top_k":20,
          "min_p":0.1,"repetition_penalty":1.05})");
  const ModelSpec spec = load();
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(5, 4));
  EXPECT_TRUE(spec.default_do_sample);
  EXPECT_EQ(spec.default_temperature, 0.7F);
  EXPECT_EQ(spec.default_top_p, 0.8F);
  EXPECT_EQ(spec.default_top_k, 20);
  EXPECT_EQ(spec.default_min_p, 0.1F);
  EXPECT_EQ(spec.default_repetition_penalty, 1.05F);
}

TEST_F(ModelConfigTest, GenerationConfigMayBeMissing) {
  config_["eos_token_id"] = 3;
  std::filesystem::remove(folder_.path() / "generation_config.json");
  const ModelSpec spec = load();
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(3));
  EXPECT_TRUE(spec.default_do_sample);
  EXPECT_EQ(spec.default_temperature, 1.0F);
  EXPECT_EQ(spec.default_top_k, 0);
  EXPECT_EQ(spec.default_min_p, 0.0F);
  EXPECT_EQ(spec.default_repetition_penalty, 1.0F);
}

TEST_F(ModelConfigTest, OptionalKeysHaveTheDefaultsOfTransformers) {
  for (const char* key :
       {"rms_norm_eps", "rope_theta", "norm_topk_prob", "head_dim", "hidden_act"}) {
    config_.erase(key);
  }
  const ModelSpec spec = load();
  EXPECT_EQ(spec.rms_eps, 1e-6F);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_FALSE(spec.router.renormalize);
  EXPECT_EQ(spec.head_dim, 8U);
}

TEST_F(ModelConfigTest, RopeParametersOfTransformers5) {
  config_.erase("rope_theta");
  config_["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(load().rope.theta, 1e6);
}

TEST_F(ModelConfigTest, FingerprintSeesConfigAndTensors) {
  const std::uint64_t first = load().fingerprint;
  EXPECT_EQ(load().fingerprint, first);

  config_["rope_theta"] = 20000.0;
  EXPECT_NE(load().fingerprint, first);
  config_["rope_theta"] = 10000.0;
  EXPECT_EQ(load().fingerprint, first);

  TinyCheckpointOptions float32;
  float32.dtype = "F32";
  write_tiny_checkpoint(folder_.path(), float32);
  const std::uint64_t second = load().fingerprint;
  EXPECT_NE(second, first);

  // Another fine-tune: nothing differs but values.
  const auto file = folder_.path() / "model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-4, std::ios::end);
  stream.write("\x00\x00\x80\x3f", 4);
  stream.close();
  EXPECT_NE(load().fingerprint, second);

  std::filesystem::remove(folder_.path() / "model.safetensors");
  float32.num_shards = 2;
  write_tiny_checkpoint(folder_.path(), float32);
  EXPECT_NE(load().fingerprint, second);
}

TEST_F(ModelConfigTest, ACheckpointWithMoreLayersThanTheConfigIsRefused) {
  load();
  config_["num_hidden_layers"] = 1;
  EXPECT_THAT(error(), AllOf(HasSubstr("model.safetensors: tensor model.layers.1."),
                             HasSubstr("num_hidden_layers is 1")));
}

TEST(ModelSpecTest, FingerprintIsTheSameOnEveryMachine) {
  // Computed by a Python script that follows model.cpp's definition of the digest.
  EXPECT_EQ(load_model_spec(kAtlas).fingerprint, 0xa1bc6b3252bc2600ULL);
}

struct BadConfig {
  const char* name;
  const char* patch;  ///< merged into the config; null removes a key
  const char* error;
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }

class BadConfigTest : public ModelConfigTest, public ::testing::WithParamInterface<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedByName) {
  config_.merge_patch(nlohmann::json::parse(GetParam().patch));
  EXPECT_THAT(error(), HasSubstr(std::string("config.json: ") + GetParam().error));
}

const BadConfig kBadConfigs[] = {
    {"NoArchitecture", R"({"architectures":null})", "architectures: is not a list of one name"},
    {"UnknownArchitecture", R"({"architectures":["Gemma3ForCausalLM"]})",
     "architectures: 'Gemma3ForCausalLM' can't be served; use a model of "},
    {"Gptq", R"({"quantization_config":{"quant_method":"gptq","bits":4}})",
     "quantization_config: quantization 'gptq' is not supported; use the model's BF16, F16 or F32 "
     "checkpoint (no quantization_config), or its FP8 one (quant_method fp8, weight_block_size "
     "[128, 128], activation_scheme dynamic)"},
    {"Awq", R"({"quantization_config":{"quant_method":"awq"}})",
     "quantization_config: quantization 'awq' is not supported"},
    {"BitsAndBytes", R"({"quantization_config":{"quant_method":"bitsandbytes"}})",
     "quantization_config: quantization 'bitsandbytes' is not supported"},
    {"Mxfp4", R"({"quantization_config":{"quant_method":"mxfp4"}})",
     "quantization_config: quantization 'mxfp4' is not supported"},
    {"CompressedTensors", R"({"quantization_config":{"quant_method":"compressed-tensors"}})",
     "quantization_config: quantization 'compressed-tensors' is not supported"},
    {"CompressionConfig", R"({"compression_config":{"format":"float-quantized"}})",
     "compression_config: quantization 'compressed-tensors' is not supported"},
    {"ModelOpt", R"({"quantization_config":{"quant_method":"modelopt"}})",
     "quantization_config: quantization 'modelopt' is not supported"},
    {"Fp8PerTensor", R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[1]}})",
     "quantization_config: quantization 'fp8' with weight_block_size '[1]' is not supported"},
    {"Fp8OtherBlocks",
     R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[64,128]}})",
     "quantization_config: quantization 'fp8' with weight_block_size '[64,128]' is not supported"},
    {"Fp8Static", R"({"quantization_config":{"quant_method":"fp8","activation_scheme":"static"}})",
     "quantization_config: quantization 'fp8' with activation_scheme 'static' is not supported"},
    {"Fp4Experts", R"({"quantization_config":{"quant_method":"fp8","expert_dtype":"fp4"}})",
     "quantization_config: quantization 'fp8' with expert_dtype 'fp4' is not supported"},
    {"Fp8OddList",
     R"({"quantization_config":{"quant_method":"fp8","modules_to_not_convert":"lm_head"}})",
     "quantization_config.modules_to_not_convert: is not a list of module names"},
    {"QuantizationNoObject", R"({"quantization_config":"fp8"})",
     "quantization_config: is not an object"},
    {"QuantizedSomehow", R"({"quantization_config":{}})",
     "quantization_config: quantization of an unnamed method is not supported"},
    {"RopeScaling", R"({"rope_scaling":{"rope_type":"longrope","factor":4.0}})",
     "rope_scaling.rope_type: scaled rotary embedding 'longrope' is not supported; use a model "
     "with one of default, linear, dynamic, yarn, llama3"},
    {"RopeScalingOldKey", R"({"rope_scaling":{"type":"su","factor":2.0}})",
     "rope_scaling.rope_type: scaled rotary embedding 'su' is not supported"},
    {"RopeFactor", R"({"rope_parameters":{"rope_type":"linear"}})",
     "rope_parameters.factor: is missing"},
    {"RopeBands",
     R"({"rope_parameters":{"rope_type":"llama3","factor":8.0,"low_freq_factor":4.0,)"
     R"("high_freq_factor":4.0}})",
     "rope_parameters.high_freq_factor: 4 is not more than low_freq_factor = 4"},
    {"RopeByLayerType", R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})",
     "rope_parameters: differ by layer type, which is not supported"},
    {"RopeIsText", R"({"rope_scaling":"linear"})", "rope_scaling: is not an object"},
    {"RopeParametersTheta", R"({"rope_parameters":{"rope_theta":"big"}})",
     "rope_parameters.rope_theta: is \"big\", not a number"},
    {"RopeInTwoPlaces",
     R"({"rope_parameters":{"rope_theta":1e6},"rope_scaling":{"type":"yarn","factor":4.0}})",
     "rope_scaling: stands beside rope_parameters and says something else; move its keys into "
     "rope_parameters"},
    {"RopeThetaOfYarn", R"({"rope_theta":1,"rope_scaling":{"type":"yarn","factor":4.0}})",
     "rope_theta: is 1, with which YaRN has no frequencies"},
    {"RopeDynamicFactor", R"({"rope_scaling":{"type":"dynamic","factor":"x"}})",
     "rope_scaling.factor: is \"x\", not a number"},
    {"RopeDynamicWithout", R"({"rope_scaling":{"type":"dynamic"}})",
     "rope_scaling.factor: is missing"},
    {"LayerTypesOfAnotherModel", R"({"layer_types":["full_attention"]})",
     "layer_types: is not a list of num_hidden_layers = 2 names"},
    {"LayerTypesNoList", R"({"layer_types":"full_attention"})",
     "layer_types: is not a list of num_hidden_layers = 2 names"},
    {"HardlyRotated", R"({"partial_rotary_factor":0.4})",
     "partial_rotary_factor: leaves 3 of 8 elements of a head to rotate"},
    {"SlidingWindow", R"({"use_sliding_window":true,"sliding_window":-1})",
     "sliding_window: is -1, not an integer from 0"},
    {"DenseLayers", R"({"mlp_only_layers":[0]})", "intermediate_size: is missing"},
    {"DenseLayerThatIsNone", R"({"mlp_only_layers":[2]})",
     "mlp_only_layers: 2 is no layer below num_hidden_layers = 2"},
    {"SparseStep", R"({"decoder_sparse_step":0})",
     "decoder_sparse_step: is 0, not an integer from 1"},
    {"Activation", R"({"hidden_act":"gelu"})", "hidden_act: 'gelu' is not supported; use a model"},
    {"NoHiddenSize", R"({"hidden_size":null})", "hidden_size: is missing"},
    {"NoVocabulary", R"({"vocab_size":0})", "vocab_size: is 0, not an integer from 1 to"},
    {"NegativeLayers", R"({"num_hidden_layers":-3})",
     "num_hidden_layers: is -3, not an integer from 1 to"},
    {"AbsurdLayers", R"({"num_hidden_layers":1000000000000})",
     "num_hidden_layers: is 1000000000000, not an integer from 1 to 1024"},
    {"FractionalHeads", R"({"num_attention_heads":4.5})",
     "num_attention_heads: is 4.5, not an integer"},
    {"TextAsNumber", R"({"num_experts":"16"})", "num_experts: is \"16\", not an integer"},
    {"HeadsDontDivide", R"({"num_key_value_heads":3})",
     "num_key_value_heads: 3 does not divide num_attention_heads = 4"},
    {"OddHeads", R"({"head_dim":7})", "head_dim: 7 is no positive even number"},
    {"HiddenDoesNotDivide", R"({"head_dim":null,"num_attention_heads":6})",
     "num_attention_heads: 6 does not divide hidden_size = 32 and head_dim is not given"},
    {"MoreRoutesThanExperts", R"({"num_experts_per_tok":5})",
     "num_experts_per_tok: 5 is more than num_experts = 4"},
    {"Epsilon", R"({"rms_norm_eps":-1.0})", "rms_norm_eps: is -1.0, not a number from"},
    {"Theta", R"({"rope_theta":0})", "rope_theta: is 0, not a number from"},
    {"TiedIsText", R"({"tie_word_embeddings":"yes"})",
     "tie_word_embeddings: is \"yes\", not true or false"},
    {"EosOutsideTheVocabulary", R"({"eos_token_id":96})",
     "eos_token_id: 96 is no token id below vocab_size = 96"},
    {"EosIsText", R"({"eos_token_id":["x"]})", "eos_token_id: \"x\" is no token id"},
};

INSTANTIATE_TEST_SUITE_P(Config, BadConfigTest, ::testing::ValuesIn(kBadConfigs),
                         [](const auto& row) { return std::string(row.param.name); });

// A null in a patch would remove the key.
TEST_F(ModelConfigTest, Fp8WithAScaleATensorIsRefused) {
  config_["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", nullptr}};
  EXPECT_THAT(error(), HasSubstr("quantization 'fp8' with a scale a tensor (weight_block_size null)"
                                 " is not supported; use"));
}

TEST_F(ModelConfigTest, DimensionsThatTheTensorsContradict) {
  config_["moe_intermediate_size"] = 32;
  EXPECT_THAT(error(), HasSubstr("tensor 'model.layers.0.mlp.experts.0.gate_proj.weight' has shape "
                                 "[24, 32], config.json needs [32, 32]"));
  config_["moe_intermediate_size"] = 24;
  config_["num_experts"] = 5;
  EXPECT_THAT(error(), HasSubstr("tensor 'model.layers.0.mlp.gate.weight' has shape [4, 32], "
                                 "config.json needs [5, 32]"));
  config_["num_experts"] = 4;
  config_["num_hidden_layers"] = 3;
  EXPECT_THAT(error(), HasSubstr("tensor 'model.layers.2.input_layernorm.weight' is missing"));
}

TEST_F(ModelConfigTest, UntiedModelNeedsAHead) {
  TinyCheckpointOptions tied;
  tied.tied_embeddings = true;
  write_tiny_checkpoint(folder_.path(), tied);
  EXPECT_THAT(error(), HasSubstr("tensor 'lm_head.weight' is missing"));
}

TEST_F(ModelConfigTest, MalformedFiles) {
  write_generation_config("{\"temperature\": -1}");
  EXPECT_THAT(error(), HasSubstr("generation_config.json: temperature: is -1, not a number from"));
  write_generation_config("[]");
  EXPECT_THAT(error(), HasSubstr("generation_config.json: not a JSON object"));
  config_ = nlohmann::json::array();
  EXPECT_THAT(error(), HasSubstr("config.json: not a JSON object"));
  const auto error_of_text = [&](const std::string& text) -> std::string {
    write_file(folder_.path() / "config.json", text);
    try {
      load_model_spec(folder_.path());
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of_text(""), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of_text("{\"a\":"), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of_text("{\"a\":" + std::string(100000, '[')), HasSubstr("nested too deeply"));
  std::filesystem::remove(folder_.path() / "config.json");
  try {
    load_model_spec(folder_.path());
    FAIL() << "a folder without config.json was accepted";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json: can't be read; give a complete Hugging"));
  }
}

// Opening a FIFO waits for a writer; a test that hangs here has found the old fault.
TEST_F(ModelConfigTest, WhatIsNoFileIsRefusedAtOnce) {
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
    const auto path = folder_.path() / name;
    const auto kept = folder_.path() / "kept";
    std::filesystem::rename(path, kept);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THROW(load_model_spec(folder_.path()), ModelError) << name;
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    EXPECT_THROW(load_model_spec(folder_.path()), ModelError) << name;
    std::filesystem::remove(path);
    std::filesystem::rename(kept, path);
  }
  EXPECT_NO_THROW(load_model_spec(folder_.path()));
}

// What an unfinished download leaves.
TEST_F(ModelConfigTest, FilesThatAreNotThereYetAreNoMissingFiles) {
  const auto load_error = [this] {
    try {
      load_model_spec(folder_.path());
    } catch (const ModelError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  write_generation_config("{}");
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
    const auto path = folder_.path() / name;
    const auto kept = folder_.path() / "kept";
    std::filesystem::rename(path, kept);
    std::filesystem::create_symlink("../blobs/1", path);
    EXPECT_THAT(load_error(), HasSubstr(path.string() + ": can't be "));
    std::filesystem::remove(path);
    write_file(path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 99\n");
    EXPECT_THAT(load_error(), HasSubstr(path.string() + " is a Git LFS pointer instead of the "
                                                        "file; fetch it with `git lfs pull`"));
    std::filesystem::remove(path);
    std::filesystem::rename(kept, path);
  }
}

TEST(ArchitectureRegistryTest, AnUnknownNameIsToldAllThereAre) {
  const auto names = ArchitectureRegistry::builtin().names();
  ASSERT_THAT(names, Contains("LlamaForCausalLM"));
  try {
    ArchitectureRegistry::builtin().find("Gemma3ForCausalLM", "config.json");
    FAIL() << "served";
  } catch (const ModelError& error) {
    for (const auto& name : names) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(ArchitectureRegistryTest, RejectsDuplicates) {
  ArchitectureRegistry registry;
  registry.add(all_architectures().front());
  EXPECT_THROW(registry.add(all_architectures().front()), InternalError);
  EXPECT_EQ(registry.names().size(), 1U);
}

}  // namespace
}  // namespace fastfd::model
