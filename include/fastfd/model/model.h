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
#include "fastfd/model/model_spec.h"
#include "kernels/expert_ffn/op.h"
#include "kernels/gemm/op.h"

namespace fastfd::model {

/// A model folder that can't be served. what() names file, tensor or key, and the remedy.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads config files and tensor headers, no tensor data, and checks that every tensor the model
/// needs is there in the right shape. kDummy: needs config.json alone. Throws ModelError.
ModelSpec load_model_spec(const std::filesystem::path& model_dir, const LoadOptions& options = {});

/// AttentionKind::kFull.
struct FullAttentionWeights {
  kernels::PackedWeights qkv;         ///< [(q + 2 kv heads) * head_dim, hidden_dim]: q, k, v rows
  std::vector<float> qkv_bias;        ///< [(q + 2 kv heads) * head_dim] or empty
  std::vector<float> q_norm, k_norm;  ///< as kernels::QkNormRopeParams wants them, or empty
  std::vector<float> sinks;           ///< [q heads] or empty
  kernels::PackedWeights out;         ///< [hidden_dim, q heads * head_dim]
  std::vector<float> out_bias;        ///< [hidden_dim] or empty
  kernels::PackedWeights gate;        ///< [q heads * head_dim, hidden_dim] or empty
};

/// AttentionKind::kGatedDeltaNet; vectors as kernels::GatedDeltaNetParams wants them.
struct GatedDeltaNetWeights {
  kernels::PackedWeights in;   ///< [row_dim, hidden_dim]
  std::vector<float> conv;     ///< [conv_kernel, conv_dim]
  std::vector<float> a_log;    ///< [num_v_heads]
  std::vector<float> dt_bias;  ///< [num_v_heads]
  std::vector<float> norm;     ///< [v_head_dim]
  kernels::PackedWeights out;  ///< [hidden_dim, value_dim]
};

/// AttentionKind::kLatent. kv_b_proj is cut by heads into what queries absorb and what turns sums
/// of latent rows into values.
struct LatentAttentionWeights {
  kernels::PackedWeights q_down;             ///< [q_rank, hidden_dim] or empty
  std::vector<float> q_norm;                 ///< [q_rank] or empty
  kernels::PackedWeights q;                  ///< [num_heads * (nope + rope), q_rank or hidden_dim]
  kernels::PackedWeights kv;                 ///< [kv_rank + rope, hidden_dim]
  std::vector<float> kv_norm;                ///< [kv_rank]
  std::vector<kernels::PackedWeights> keys;  ///< [num_heads] x [kv_rank, nope]
  std::vector<kernels::PackedWeights> values;  ///< [num_heads] x [value_dim, kv_rank]
  kernels::PackedWeights out;                  ///< [hidden_dim, num_heads * value_dim]
  std::size_t num_bytes() const;
};

/// FfnKind::kExperts.
struct RouterWeights {
  kernels::PackedWeights weights;      ///< [num_experts, hidden_dim]
  std::vector<float> correction_bias;  ///< [num_experts] or empty
  std::vector<float> bias;             ///< [num_experts] or empty; of the logits
};

/// One FFN of spec.shared_intermediate_dim hidden units.
struct SharedExpertWeights {
  kernels::ExpertWeights expert;
  kernels::PackedWeights gate;  ///< [1, hidden_dim] or empty
};

/// What a layer does not have stays empty.
struct AttentionLayerWeights {
  std::vector<float> input_norm;  ///< [hidden_dim]
  FullAttentionWeights full;
  LatentAttentionWeights latent;
  GatedDeltaNetWeights gated_delta_net;
  std::vector<float> post_norm;  ///< [hidden_dim]
  RouterWeights router;
  SharedExpertWeights shared;
};

/// Everything an attention server holds; no expert tensor's data is touched to make it.
struct AttentionWeights {
  std::vector<bf16> embedding;  ///< [vocab_size, hidden_dim]; empty if tied: rows of lm_head
  std::vector<AttentionLayerWeights> layers;
  std::vector<float> final_norm;   ///< [hidden_dim]
  kernels::PackedWeights lm_head;  ///< [vocab_size, hidden_dim]
  std::size_t num_bytes() const;
};

/// One layer of an FFN server.
struct FfnLayerWeights {
  /// kExperts: the server's experts, ascending global id. kDense: its slices of the FFN, ascending,
  /// all as wide as the widest of any server, with zeros behind.
  std::vector<kernels::ExpertWeights> experts;
  std::uint32_t intermediate_dim = 0;  ///< of each
  kernels::ActivationRule activation;
};

/// Everything an FFN server holds.
struct FfnWeights {
  std::vector<FfnLayerWeights> layers;  ///< [num_layers]
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
/// `placement`: of spec.num_placed_experts(); dense layers lie as its dense_slices().
FfnWeights load_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                            const ExpertPlacement& placement, ServerRank ffn_rank,
                            LoadReport* report = nullptr);

}  // namespace fastfd::model
