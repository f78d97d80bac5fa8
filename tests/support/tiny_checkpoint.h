#pragma once

/// Tiny seeded Hugging Face checkpoints for tests, and the raw pieces to write broken ones.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fastfd/core/dtype.h"

namespace fastfd::test {

/// A fresh folder under the system's temporary folder, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Shapes and form of a Qwen3-MoE checkpoint. Equal options give equal files.
struct TinyCheckpointOptions {
  std::uint32_t vocab_size = 96;
  std::uint32_t hidden_dim = 32;
  std::uint32_t num_layers = 2;
  std::uint32_t num_q_heads = 4;
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 8;
  std::uint32_t num_experts = 4;
  std::uint32_t experts_per_token = 2;
  std::uint32_t expert_intermediate_dim = 24;
  std::uint32_t max_positions = 128;
  bool tied_embeddings = false;
  std::string dtype = "BF16";  ///< BF16, F16 or F32
  /// Block FP8: the projections of attention and experts are F8_E4M3 with scales of
  /// `scale_dtype`, everything else stays `dtype`; config.json says so.
  bool fp8 = false;
  std::string scale_dtype = "F32";
  std::uint32_t num_shards = 1;  ///< more than 1: with model.safetensors.index.json
  /// Bytes by which the tensors' data misses 8-byte alignment in the file.
  std::uint32_t misalignment = 0;
  std::uint64_t seed = 1;
};

/// Row-major values that the file's type represents exactly, so that reading gives them back.
struct TinyTensor {
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
  std::string dtype = {};  ///< empty: the file's
  std::vector<std::uint8_t> bits =
      {};  ///< of F8_E4M3: what the file holds; `values` are dequantised
};
using TinyTensors = std::map<std::string, TinyTensor>;

/// All tensors of a model, normally distributed; norm weights near 1. Values are bf16. With `fp8`
/// the scales are tensors of their own, X_scale_inv.
TinyTensors make_tiny_tensors(const TinyCheckpointOptions& options);

/// Makes `name` F8_E4M3 in blocks of 128 x 128 and adds its scales, of `scale_dtype`.
void quantize_tensor(TinyTensors& tensors, const std::string& name,
                     const std::string& scale_dtype = "F32");

/// config.json's text.
std::string make_tiny_config(const TinyCheckpointOptions& options);

/// Writes config.json, generation_config.json and the checkpoint into an existing folder.
void write_tiny_checkpoint(const std::filesystem::path& dir, const TinyCheckpointOptions& options);

/// One safetensors file of the given tensors.
void write_safetensors(const std::filesystem::path& file, const TinyTensors& tensors,
                       const std::string& dtype = "BF16", std::uint32_t misalignment = 0);

/// The bytes of a file: length, `header`, and `num_data_bytes` zeros. Nothing is checked.
std::string raw_safetensors(const std::string& header, std::uint64_t num_data_bytes);

void write_file(const std::filesystem::path& file, const std::string& bytes);
std::string read_file(const std::filesystem::path& file);

}  // namespace fastfd::test
