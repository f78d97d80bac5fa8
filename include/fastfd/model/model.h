#pragma once

/// Hugging Face folder -> the tensors one role needs.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/load_format.h"
#include "kernels/expert_ffn/op.h"
#include "kernels/gemm/op.h"

namespace fastfd::model {

/// A model folder that can't be served. what() names file, tensor or key, and the remedy.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How the weights of a model come to be. Equal on all servers of a cluster.
struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  std::uint64_t dummy_seed = 0;  ///< kDummy: other seeds give other models
  /// Serves the first so many layers only, which measures but makes no sense; 0: all.
  std::uint32_t num_layers = 0;
  /// What FFN servers hold experts in: kBFloat16 (FP8 ones of the checkpoint are dequantised),
  /// kFloat8E4M3 (others are quantised as they are loaded, by the GPU that will hold them), or as
  /// the checkpoint has them. Servers on the CPU hold kBFloat16 and nothing else.
  std::optional<DType> expert_dtype = DType::kBFloat16;
};

/// The parts of config.json and generation_config.json that FastFD uses.
struct ModelSpec {
  std::string architecture;  ///< "Qwen3MoeForCausalLM"
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_dim = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t max_positions = 0;
  float rms_eps = 1e-6F;
  double rope_theta = 10000.0;
  bool tied_embeddings = false;
  std::uint32_t num_experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t expert_intermediate_dim = 0;
  bool renormalize_routes = true;
  std::vector<TokenId> eos_token_ids;  ///< generation_config.json, else config.json
  /// Defaults for requests that don't say (generation_config.json).
  bool default_do_sample = true;
  float default_temperature = 1.0F;
  float default_top_p = 1.0F;
  std::int32_t default_top_k = 0;
  LoadOptions load;
  /// Matrices of the checkpoint may be F8_E4M3 in blocks of 128 x 128 with scales
  /// (quantization_config of quant_method fp8).
  bool has_fp8_blocks = false;
  /// load.expert_dtype, decided. Asked for what the checkpoint has: kFloat8E4M3 if all experts are
  /// FP8 there and their dimensions are multiples of 128 (kDummy: if quantization_config says so).
  DType expert_dtype = DType::kBFloat16;
  /// Digest of config.json and of names, shapes, offsets and some bytes of all tensors (kDummy: of
  /// the seed): equal on all servers of a cluster, compared at the handshake.
  std::uint64_t fingerprint = 0;
};

/// Reads config files and tensor headers, no tensor data, and checks that every tensor the model
/// needs is there in the right shape. kDummy: needs config.json alone. Throws ModelError.
ModelSpec load_model_spec(const std::filesystem::path& model_dir, const LoadOptions& options = {});

struct AttentionLayerWeights {
  std::vector<float> input_norm;      ///< [hidden_dim]
  kernels::PackedWeights qkv;         ///< [(q + 2 kv heads) * head_dim, hidden_dim]: q, k, v rows
  std::vector<float> q_norm, k_norm;  ///< [head_dim]
  kernels::PackedWeights out;         ///< [hidden_dim, q heads * head_dim]
  std::vector<float> post_norm;       ///< [hidden_dim]
  kernels::PackedWeights router;      ///< [num_experts, hidden_dim]
};

/// Everything an attention server holds; no expert tensor's data is touched to make it.
struct AttentionWeights {
  std::vector<bf16> embedding;  ///< [vocab_size, hidden_dim]; empty if tied: rows of lm_head
  std::vector<AttentionLayerWeights> layers;
  std::vector<float> final_norm;   ///< [hidden_dim]
  kernels::PackedWeights lm_head;  ///< [vocab_size, hidden_dim]
  std::size_t num_bytes() const;
};

/// The experts of one FFN server: [num_layers][local expert].
struct FfnWeights {
  std::vector<std::vector<kernels::ExpertWeights>> layers;
  std::size_t num_bytes() const;
};

/// The tensors whose data was read or made up, for tests and logs.
struct LoadReport {
  std::vector<std::string> tensors;
  std::uint64_t bytes_read = 0;  ///< of the checkpoint's files, headers not counted
};

/// Map (or make up, as spec.load says), pack, drop the file pages. Throws ModelError (missing
/// tensor, wrong shape or dtype, truncated file, ...). May be called from several threads for
/// different results.
AttentionWeights load_attention_weights(const std::filesystem::path& model_dir,
                                        const ModelSpec& spec, LoadReport* report = nullptr);
FfnWeights load_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                            const ExpertPlacement& placement, ServerRank ffn_rank,
                            LoadReport* report = nullptr);

}  // namespace fastfd::model
