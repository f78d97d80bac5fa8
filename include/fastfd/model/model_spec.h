#pragma once

/// A model as a description: what an attention server and an FFN server compute in each layer. An
/// architecture fills it from config.json; nothing behind it asks for an architecture by name.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/load_format.h"
#include "kernels/expert_ffn/op.h"
#include "kernels/gated_delta_net/op.h"
#include "kernels/rope/op.h"
#include "kernels/router/op.h"

namespace fastfd::model {

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

/// What mixes a layer's tokens.
enum class AttentionKind : std::uint8_t {
  kFull,           ///< grouped-query attention over earlier tokens, which paged KV holds
  kGatedDeltaNet,  ///< linear attention over a recurrent state (kernels/gated_delta_net)
  kLatent,         ///< the same over paged rows that all heads share: multi-head latent attention
};

/// Sizes of AttentionKind::kLatent (DeepSeek-V2, arXiv:2405.04434, 2.1).
struct LatentSpec {
  std::uint32_t num_heads = 0;
  std::uint32_t q_rank = 0;    ///< of the queries' bottleneck; 0: they are projected at once
  std::uint32_t kv_rank = 0;   ///< elements of a latent row
  std::uint32_t nope_dim = 0;  ///< of a head's queries and keys, not rotated
  std::uint32_t rope_dim = 0;  ///< and rotated, one key for all heads
  std::uint32_t value_dim = 0;
  bool interleaved_rope = true;  ///< elements 2i and 2i + 1 rotate together, not i and i + half
  float scale = 1.0F;            ///< of the scores

  std::uint32_t query_dim() const { return nope_dim + rope_dim; }
  /// What the pages hold of a token.
  std::uint32_t row_dim() const { return kv_rank + rope_dim; }
};

/// What the FFN servers compute for a layer.
enum class FfnKind : std::uint8_t {
  kExperts,  ///< each token goes to the experts that the router chooses
  kDense,    ///< one FFN in as many slices as there are FFN servers; each sees all tokens
};

struct LayerSpec {
  AttentionKind attention = AttentionKind::kFull;
  FfnKind ffn = FfnKind::kExperts;
  /// kFull: a token sees the last so many, itself included (sliding window); 0: all. Pages hold the
  /// others as well.
  std::uint32_t window = 0;
};

/// How matrices lie in the files that are not plain numbers there (quantization_config). The files
/// say which; reading multiplies them out.
enum class StoredQuantization : std::uint8_t {
  kNone,
  kFp8Blocks,  ///< F8_E4M3 in blocks of 128 x 128 with scales (quant_method fp8)
  kMxfp4,      ///< 4-bit floats with a power of two for every 32 (quant_method mxfp4)
};

/// The parts of config.json and generation_config.json that FastFD uses.
struct ModelSpec {
  std::string architecture;  ///< "Qwen3MoeForCausalLM"
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_dim = 0;
  std::uint32_t num_layers = 0;
  std::vector<LayerSpec> layers;  ///< [num_layers]
  /// Layers behind them that guess further tokens: the checkpoint may have them, nobody loads them.
  std::uint32_t num_prediction_layers = 0;
  std::uint32_t max_positions = 0;
  float rms_eps = 1e-6F;
  bool zero_centered_norms = false;  ///< norms multiply by 1 + w; folded in as weights are loaded
  bool tied_embeddings = false;

  // AttentionKind::kFull
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool has_output_gate = false;  ///< sigmoid of a projection, element by element
  bool has_sinks = false;        ///< a logit a head in the softmax (kernels/attention)
  kernels::QkNorm qk_norm = kernels::QkNorm::kNone;
  kernels::RopeParams rope;  ///< kLatent too

  LatentSpec latent;  ///< AttentionKind::kLatent

  // AttentionKind::kGatedDeltaNet
  kernels::GatedDeltaNetShape gated_delta_net;

  // FfnKind::kDense
  std::uint32_t dense_intermediate_dim = 0;

  // FfnKind::kExperts
  std::uint32_t num_experts = 0;  ///< 0: no layer has any
  std::uint32_t experts_per_token = 0;
  std::uint32_t expert_intermediate_dim = 0;
  kernels::RouterRule router;
  bool has_correction_bias = false;           ///< of the router's choice
  bool has_router_bias = false;               ///< of its logits
  bool has_expert_biases = false;             ///< of the routed experts' three projections
  kernels::ActivationRule expert_activation;  ///< of the routed experts
  /// All shared experts of a layer as one FFN, on the attention server; 0: none.
  std::uint32_t shared_intermediate_dim = 0;
  bool has_shared_gate = false;  ///< sigmoid of a projection weighs them

  std::vector<TokenId> eos_token_ids;  ///< generation_config.json, else config.json
  /// Defaults for requests that don't say (generation_config.json).
  bool default_do_sample = true;
  float default_temperature = 1.0F;
  float default_top_p = 1.0F;
  std::int32_t default_top_k = 0;
  float default_min_p = 0.0F;
  float default_repetition_penalty = 1.0F;
  LoadOptions load;
  StoredQuantization stored = StoredQuantization::kNone;
  /// load.expert_dtype, decided. Asked for what the checkpoint has: kFloat8E4M3 if all experts are
  /// FP8 there and their dimensions are multiples of 128 (kDummy: if quantization_config says so).
  DType expert_dtype = DType::kBFloat16;
  /// Digest of config.json and of names, shapes, offsets and some bytes of all tensors (kDummy: of
  /// the seed): equal on all servers of a cluster, compared at the handshake.
  std::uint64_t fingerprint = 0;

  /// Of the heads of q, and of those of k (or v), together.
  std::uint32_t q_dim() const { return num_q_heads * head_dim; }
  std::uint32_t kv_dim() const { return num_kv_heads * head_dim; }
  bool has_layer(FfnKind kind) const { return count(kind, num_layers) > 0; }
  /// The smallest window of a layer; 0: all see all.
  std::uint32_t smallest_window() const {
    std::uint32_t smallest = 0;
    for (const LayerSpec& layer : layers) {
      smallest =
          layer.window != 0 && (smallest == 0 || layer.window < smallest) ? layer.window : smallest;
    }
    return smallest;
  }
  std::uint32_t num_layers_of(AttentionKind kind) const { return count(kind, num_layers); }
  /// Sequences have state that KV pages don't hold, which exists at their newest token only.
  bool has_recurrent_state() const { return num_layers_of(AttentionKind::kGatedDeltaNet) > 0; }
  /// Of one sequence, in all layers.
  std::size_t recurrent_state_bytes() const {
    return num_layers_of(AttentionKind::kGatedDeltaNet) *
           static_cast<std::size_t>(gated_delta_net.state_floats()) * sizeof(float);
  }
  /// Which of the layers of its own attention kind a layer is, from 0: of kFull layers, the KV
  /// cache's index.
  std::uint32_t index_of_kind(std::uint32_t layer) const {
    return count(layers[layer].attention, layer);
  }
  /// Routes of a token to one FFN server: its experts, or the slice of a dense FFN.
  std::uint32_t max_routes_per_row() const { return std::max(experts_per_token, 1U); }
  /// What an ExpertPlacement of this model places: the experts, or where no layer has any the
  /// slices of the dense FFN.
  std::uint32_t num_placed_experts(std::uint32_t num_ffn_servers) const {
    return num_experts != 0 ? num_experts : num_ffn_servers;
  }

 private:
  std::uint32_t count(AttentionKind kind, std::uint32_t before) const {
    return static_cast<std::uint32_t>(
        std::count_if(layers.begin(), layers.begin() + before,
                      [kind](const LayerSpec& layer) { return layer.attention == kind; }));
  }
  std::uint32_t count(FfnKind kind, std::uint32_t before) const {
    return static_cast<std::uint32_t>(
        std::count_if(layers.begin(), layers.begin() + before,
                      [kind](const LayerSpec& layer) { return layer.ffn == kind; }));
  }
};

/// Hidden units [begin, end) of a dense FFN.
struct DenseSlice {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// The cut of a dense FFN's hidden units into `num_slices` near-equal slices. Borders are multiples
/// of the largest of 128, 32 and 1 that keeps slices within an eighth of each other.
DenseSlice dense_slice(std::uint32_t intermediate_dim, std::uint32_t num_slices,
                       std::uint32_t slice);

}  // namespace fastfd::model
