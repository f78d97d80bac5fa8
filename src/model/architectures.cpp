// The architectures that FastFD serves. Defaults and meaning of every setting are those of the
// model's configuration_*.py and modeling_*.py in transformers.
#include <nlohmann/json.hpp>

#include "model/architecture.h"
#include "model/decoder_config.h"
#include "model/deepseek.h"
#include "model/gpt_oss.h"
#include "model/qwen3_hybrid.h"

namespace fastfd::model {
namespace {

using kernels::QkNorm;
using kernels::RouterScoring;

/// What Qwen's configurations assume where config.json says nothing.
constexpr std::uint32_t kQwenWindow = 4096;
constexpr std::uint32_t kQwenFirstWindowLayer = 28;

std::uint32_t first_window_layer(const HfConfig& config) {
  return config.count_or("max_window_layers", kQwenFirstWindowLayer, 0, kMostLayers);
}

void read_llama(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {}, spec);
  read_dense_ffn(config, spec);
  refuse_flag(config, "mlp_bias", "biases of the FFN");
  spec.qkv_bias = spec.out_bias = config.flag_or("attention_bias", false);
}

void read_qwen2(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {}, spec);
  read_dense_ffn(config, spec);
  spec.qkv_bias = true;
  read_sliding_window(
      config, {.default_window = kQwenWindow, .first_layer = first_window_layer(config)}, spec);
}

/// Qwen2-MoE alone means every other layer before max_window_layers; no published model has any.
void refuse_windows_by_turns(const HfConfig& config, const ModelSpec& spec) {
  if (config.flag_or("use_sliding_window", false) &&
      config.count_or("sliding_window", kQwenWindow, 0, 1U << 30) < spec.max_positions) {
    config.fail("use_sliding_window", "windows of Qwen2-MoE are not supported",
                "set it to false to serve the model with full attention, or "
                "max_position_embeddings to the window");
  }
}

void read_qwen2_moe(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {}, spec);
  read_experts(config, "moe_intermediate_size", spec);
  read_sparse_layers(config, spec);
  spec.qkv_bias = config.flag_or("qkv_bias", true);
  spec.router.renormalize = config.flag_or("norm_topk_prob", false);
  spec.shared_intermediate_dim = config.count("shared_expert_intermediate_size", 1, kMostHidden);
  spec.has_shared_gate = true;
  refuse_windows_by_turns(config, spec);
}

void read_qwen3(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.head_dim = 128}, spec);
  read_dense_ffn(config, spec);
  spec.qk_norm = QkNorm::kPerHead;
  spec.qkv_bias = spec.out_bias = config.flag_or("attention_bias", false);
  read_sliding_window(
      config, {.default_window = kQwenWindow, .first_layer = first_window_layer(config)}, spec);
}

void read_qwen3_moe(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {}, spec);
  read_experts(config, "moe_intermediate_size", spec);
  read_sparse_layers(config, spec);
  spec.qk_norm = QkNorm::kPerHead;
  spec.qkv_bias = spec.out_bias = config.flag_or("attention_bias", false);
  spec.router.renormalize = config.flag_or("norm_topk_prob", false);
  read_sliding_window(config, {.default_window = kQwenWindow, .reads_layer_types = false}, spec);
}

void read_mistral(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.num_kv_heads = 8}, spec);
  read_dense_ffn(config, spec);
  read_sliding_window(
      config, {.default_use = true, .default_window = 4096, .reads_layer_types = false}, spec);
}

void read_mixtral(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.rms_eps = 1e-5, .rope_theta = 1e6, .num_kv_heads = 8}, spec);
  read_experts(config, "intermediate_size", spec);
  read_sliding_window(config, {.default_use = true, .reads_layer_types = false}, spec);
}

/// `attn_type_list`: 1 a layer of softmax attention, as in every M2; 0 one of lightning attention,
/// as in MiniMax-Text-01.
void refuse_linear_attention(const HfConfig& config) {
  const nlohmann::json* types = config.find("attn_type_list");
  for (const auto& type : types != nullptr ? *types : nlohmann::json::array()) {
    if (type != 1) {
      config.fail("attn_type_list", "linear attention is not supported",
                  "use a model with 1 for all layers");
    }
  }
}

void read_minimax_m2(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.rope_theta = 5e6, .head_dim = 128, .num_kv_heads = 8}, spec);
  read_experts(config, "intermediate_size", spec);
  spec.qk_norm = QkNorm::kWhole;
  spec.router.scoring = RouterScoring::kSigmoid;
  spec.has_correction_bias = config.flag_or("use_routing_bias", true);
  refuse_linear_attention(config);
  require_text(config, "scoring_func", "sigmoid");
  require_text(config, "qk_norm_type", "per_layer");
  if (!config.flag_or("use_qk_norm", true)) {
    config.fail("use_qk_norm", "is false, which is not supported", "use a model with it");
  }
  if (config.count_or("shared_intermediate_size", 0, 0, kMostHidden) != 0) {
    config.fail("shared_intermediate_size", "shared experts are not supported",
                "use a model without them");
  }
}

/// Mixtral's, and what transformers 5 calls the same tensors while they are in memory.
TensorNames mixtral_names() {
  return {.sparse_ffn = {"block_sparse_moe.", "mlp."},
          .correction_bias = "e_score_correction_bias",
          .expert_gate = "w1",
          .expert_up = "w3",
          .expert_down = "w2"};
}

}  // namespace

std::vector<Architecture> all_architectures() {
  return {
      {.name = "DeepseekV2ForCausalLM", .tensors = {}, .read_config = read_deepseek_v2},
      {.name = "DeepseekV3ForCausalLM", .tensors = {}, .read_config = read_deepseek_v3},
      {.name = "GptOssForCausalLM", .tensors = gpt_oss_names(), .read_config = read_gpt_oss},
      {.name = "LlamaForCausalLM", .tensors = {}, .read_config = read_llama},
      {.name = "MiniMaxM2ForCausalLM", .tensors = mixtral_names(), .read_config = read_minimax_m2},
      {.name = "MistralForCausalLM", .tensors = {}, .read_config = read_mistral},
      {.name = "MixtralForCausalLM", .tensors = mixtral_names(), .read_config = read_mixtral},
      {.name = "Qwen2ForCausalLM", .tensors = {}, .read_config = read_qwen2},
      {.name = "Qwen2MoeForCausalLM",
       .tensors = {.shared_expert = "shared_expert."},
       .read_config = read_qwen2_moe},
      {.name = "Qwen3ForCausalLM", .tensors = {}, .read_config = read_qwen3},
      {.name = "Qwen3MoeForCausalLM", .tensors = {}, .read_config = read_qwen3_moe},
      {.name = "Qwen3NextForCausalLM",
       .tensors = qwen3_next_names(),
       .read_config = read_qwen3_next},
      {.name = "Qwen3_5MoeForCausalLM",
       .tensors = qwen3_5_moe_names(),
       .read_config = read_qwen3_5_moe_text},
      {.name = "Qwen3_5MoeForConditionalGeneration",
       .tensors = qwen3_5_moe_names(),
       .read_config = read_qwen3_5_moe},
  };
}

}  // namespace fastfd::model
