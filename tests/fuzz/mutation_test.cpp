/// Damaged inputs: whatever a file holds, reading it gives a result or a ModelError or ConfigError,
/// never another exception, a crash or an allocation out of proportion to the file.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fastfd/config/cluster_config.h"
#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "fuzz/mutator.h"
#include "support/tiny_checkpoint.h"

namespace fastfd {
namespace {

struct Outcomes {
  int accepted = 0;
  int refused = 0;
};

/// Runs `read` on mutations of `original`; an exception that is not an `Error` fails the test and
/// shows the input.
template <typename Error>
Outcomes run_mutations(const std::string& original, test::Mutator mutator, int count,
                       const std::function<void(const std::string&)>& read) {
  Outcomes outcomes;
  for (int i = 0; i < count; ++i) {
    const std::string input = mutator.mutate(original);
    try {
      read(input);
      ++outcomes.accepted;
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "");
      ++outcomes.refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "mutation " << i << ": " << error.what() << "\n"
                    << ::testing::PrintToString(input);
    }
  }
  // Mutations that are all refused at the first byte, or all harmless, would test little.
  EXPECT_GT(outcomes.refused, count / 10);
  return outcomes;
}

/// A model small enough to be read thousands of times a second.
test::TinyCheckpointOptions smallest_model() {
  test::TinyCheckpointOptions options;
  options.vocab_size = 4;
  options.hidden_dim = 4;
  options.num_layers = 1;
  options.num_q_heads = 1;
  options.num_kv_heads = 1;
  options.head_dim = 2;
  options.num_experts = 1;
  options.experts_per_token = 1;
  options.expert_intermediate_dim = 2;
  return options;
}

class ModelMutationTest : public ::testing::Test {
 protected:
  ModelMutationTest() { test::write_tiny_checkpoint(folder_.path(), smallest_model()); }

  /// Writes `input` to the file, then reads the whole model as servers do.
  std::function<void(const std::string&)> reader_of(const std::string& file) const {
    return [this, file](const std::string& input) {
      test::write_file(folder_.path() / file, input);
      const auto spec = model::load_model_spec(folder_.path());
      model::load_attention_weights(folder_.path(), spec);
      model::load_ffn_weights(folder_.path(), spec,
                              ExpertPlacement::contiguous(spec.num_experts, 1, 1), 0);
    };
  }
  std::string original(const std::string& file) const {
    return test::read_file(folder_.path() / file);
  }

  test::TemporaryFolder folder_;
};

TEST_F(ModelMutationTest, SafetensorsFile) {
  const std::string file = "model.safetensors";
  run_mutations<model::ModelError>(original(file), test::Mutator(1), 1500, reader_of(file));
}

TEST_F(ModelMutationTest, SafetensorsHeaderOfTheRightLength) {
  // The length field follows the header, so that the header's content is reached every time.
  const std::string file = "model.safetensors";
  const std::string whole = original(file);
  const std::size_t end = whole.find("}}") + 2;
  const std::string header = whole.substr(8, end - 8);
  const std::string data = whole.substr(whole.find_first_not_of(' ', end));
  const test::Mutator mutator(
      2, {"\"F32\"", "\"BF16\"", "\"F8_E4M3\"", "\"shape\":[", "\"data_offsets\":[0,0]"});
  run_mutations<model::ModelError>(header, mutator, 3000, [&](const std::string& input) {
    reader_of(file)(test::raw_safetensors(input, 0) + data);
  });
}

TEST_F(ModelMutationTest, Config) {
  const std::string file = "config.json";
  const test::Mutator mutator(3, {"\"rope_scaling\": {}", "1048576", "65536", "1024"});
  run_mutations<model::ModelError>(original(file), mutator, 2000, reader_of(file));
}

TEST_F(ModelMutationTest, GenerationConfig) {
  const std::string file = "generation_config.json";
  run_mutations<model::ModelError>(original(file), test::Mutator(4), 500, reader_of(file));
}

TEST_F(ModelMutationTest, ShardIndex) {
  std::filesystem::remove(folder_.path() / "model.safetensors");
  auto options = smallest_model();
  options.num_shards = 2;
  test::write_tiny_checkpoint(folder_.path(), options);
  const std::string file = "model.safetensors.index.json";
  const test::Mutator mutator(5, {"model-0.safetensors", "model-1.safetensors", "../", "/"});
  run_mutations<model::ModelError>(original(file), mutator, 500, reader_of(file));
}

TEST(ConfigMutationTest, ClusterFile) {
  const std::string source_dir = FASTFD_SOURCE_DIR;
  const test::Mutator mutator(
      6, {"auto", "servers: ", "? ", "- ", "&a ", "*a", "<<: *a", "!!int ", "---\n", "|\n", "  ",
          "'", "%YAML 9.9\n", "kv_cache: {pages: 1}", "cuda:0", "\r"});
  const config::HostFacts host{.num_cores = 2, .has_bf16 = true};
  const auto outcomes = run_mutations<config::ConfigError>(
      test::read_file(source_dir + "/configs/quickstart.yaml"), mutator, 3000,
      [&](const std::string& input) {
        const auto config = config::parse_cluster_text(input, "mutant.yaml", host);
        // What was accepted prints as a file that means the same.
        EXPECT_EQ(config::parse_cluster_text(config::to_yaml(config), "mutant.yaml", host), config)
            << input;
      });
  EXPECT_GT(outcomes.accepted, 100);  // damage to comments and to values that stay legal
}

}  // namespace
}  // namespace fastfd
