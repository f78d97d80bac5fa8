#pragma once

/// Settings that most decoders name alike in config.json: what an architecture's read_config is
/// made of. All throw ModelError.

#include <string>
#include <vector>

#include "model/hf_config.h"

namespace fastfd::model {

// Far above any model there is, far below what would overflow or exhaust a machine by itself:
// config.json is believed only as far as the tensors' shapes confirm it.
inline constexpr std::uint32_t kMostHidden = 1U << 16;
inline constexpr std::uint32_t kMostLayers = 1U << 10;
inline constexpr std::uint32_t kMostExperts = 1U << 12;

/// What transformers assumes where config.json says nothing.
struct DecoderDefaults {
  double rms_eps = 1e-6;
  double rope_theta = 10000.0;
  std::uint32_t head_dim = 0;      ///< 0: hidden_size / num_attention_heads
  std::uint32_t num_kv_heads = 0;  ///< 0: num_attention_heads
  double partial_rotary_factor = 1.0;
  bool tied_embeddings = false;
};

/// Sizes, norms, rotary embedding; all layers full attention with dense FFNs so far.
void read_decoder(const HfConfig& config, const DecoderDefaults& defaults, ModelSpec& spec);

/// `intermediate_size` of dense layers.
void read_dense_ffn(const HfConfig& config, ModelSpec& spec);

/// Experts in all layers. `intermediate_key` names their width. The router is the caller's.
void read_experts(const HfConfig& config, const std::string& intermediate_key, ModelSpec& spec);

/// Makes the layers that `decoder_sparse_step` and `mlp_only_layers` name dense again (Qwen).
void read_sparse_layers(const HfConfig& config, ModelSpec& spec);

/// Which layers have a window where config.json doesn't say.
struct WindowDefaults {
  bool default_use = false;          ///< what a missing `use_sliding_window` means
  std::uint32_t default_window = 0;  ///< 0: none
  std::uint32_t first_layer = 0;     ///< layers before it have none
  bool alternates = false;           ///< layers 1, 3, .. have none
  bool reads_layer_types = true;     ///< `layer_types`, if it is there, says which have
};

/// `sliding_window` of the layers that have one. A window that hides no token of
/// max_position_embeddings is no window.
void read_sliding_window(const HfConfig& config, const WindowDefaults& defaults, ModelSpec& spec);

// Settings under which the same tensors mean another computation.
void refuse_flag(const HfConfig& config, const std::string& key, const std::string& what);
void require_text(const HfConfig& config, const std::string& key, const std::string& text);

}  // namespace fastfd::model
