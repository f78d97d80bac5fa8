#include "model/qwen3_hybrid.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/decoder_config.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

const std::string kRemedy = "use the config.json that belongs to the checkpoint";

/// `layer_types`, or every full_attention_interval-th layer is full attention.
void read_hybrid_layers(const HfConfig& config, ModelSpec& spec) {
  const std::uint32_t interval = config.count_or("full_attention_interval", 4, 1, kMostLayers);
  const nlohmann::json* types = config.find("layer_types");
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    bool is_full = (layer + 1) % interval == 0;
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[layer];
      const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
      is_full = name == "full_attention";
      if (!is_full && name != "linear_attention") {
        config.fail("layer_types",
                    fmt::format("{} of layer {} is not supported", quote_name(name), layer),
                    "use a model with full_attention and linear_attention layers");
      }
    }
    spec.layers[layer].attention = is_full ? AttentionKind::kFull : AttentionKind::kGatedDeltaNet;
  }
}

void read_gated_delta_net(const HfConfig& config, ModelSpec& spec) {
  constexpr std::uint32_t kMostHeads = 1U << 10;
  auto& shape = spec.gated_delta_net;
  shape.num_k_heads = config.count_or("linear_num_key_heads", 16, 1, kMostHeads);
  shape.num_v_heads = config.count_or("linear_num_value_heads", 32, 1, kMostHeads);
  shape.k_head_dim = config.count_or("linear_key_head_dim", 128, 1, kMostHeads);
  shape.v_head_dim = config.count_or("linear_value_head_dim", 128, 1, kMostHeads);
  shape.conv_kernel =
      config.count_or("linear_conv_kernel_dim", 4, 2, std::uint32_t{kernels::kMaxConvKernel});
  if (shape.num_v_heads % shape.num_k_heads != 0) {
    config.fail("linear_num_value_heads",
                fmt::format("{} is no multiple of linear_num_key_heads = {}", shape.num_v_heads,
                            shape.num_k_heads),
                kRemedy);
  }
}

/// What Qwen3-Next and the text part of Qwen3.5-MoE share.
void read_qwen3_hybrid(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.head_dim = 256, .num_kv_heads = 2, .partial_rotary_factor = 0.25}, spec);
  read_experts(config, "moe_intermediate_size", spec);
  read_hybrid_layers(config, spec);
  read_gated_delta_net(config, spec);
  refuse_flag(config, "attention_bias", "biases beside an output gate");
  spec.zero_centered_norms = true;
  spec.qk_norm = kernels::QkNorm::kPerHead;
  spec.has_output_gate = true;
  spec.shared_intermediate_dim =
      config.count_or("shared_expert_intermediate_size", 512, 1, kMostHidden);
  spec.has_shared_gate = true;
}

}  // namespace

void read_qwen3_next(const HfConfig& config, ModelSpec& spec) {
  read_qwen3_hybrid(config, spec);
  read_sparse_layers(config, spec);
  spec.router.renormalize = config.flag_or("norm_topk_prob", true);
}

/// Routes always sum to 1. Of three-dimensional positions a text has three equal ones, which is
/// plain rotary embedding.
void read_qwen3_5_moe_text(const HfConfig& config, ModelSpec& spec) {
  read_qwen3_hybrid(config, spec);
  spec.router.renormalize = true;
}

void read_qwen3_5_moe(const HfConfig& config, ModelSpec& spec) {
  const auto text = config.section("text_config");
  if (!text) {
    config.fail("text_config", "is missing", kRemedy);
  }
  read_qwen3_5_moe_text(*text, spec);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", spec.tied_embeddings);
}

TensorNames qwen3_next_names() {
  TensorNames names;
  names.shared_expert = "shared_expert.";
  return names;
}

TensorNames qwen3_5_moe_names() {
  TensorNames names = qwen3_next_names();
  names.decoder = {"model.language_model.", "model."};
  return names;
}

}  // namespace fastfd::model
