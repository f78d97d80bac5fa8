#include "model/gpt_oss.h"

#include "model/decoder_config.h"
#include "model/rope_config.h"

namespace fastfd::model {
namespace {

constexpr double kTheta = 150000.0;
constexpr double kLargestActivation = 1e4;

/// What the configuration assumes where config.json says nothing of rotary embedding.
void scale_rope_by_default(const HfConfig& config, ModelSpec& spec) {
  if (config.has("rope_parameters") || config.has("rope_scaling")) {
    return;
  }
  spec.rope.scaling = kernels::RopeScaling::kYarn;
  spec.rope.factor = 32.0;
  spec.rope.original_max_positions = 4096.0;
  spec.rope.attention_factor = yarn_attention_factor(spec.rope.factor);
  spec.rope.truncate = false;
}

void read_activation(const HfConfig& config, kernels::ActivationRule& rule) {
  rule.kind = kernels::GatedActivation::kClampedSwiglu;
  rule.alpha =
      static_cast<float>(config.number_or("swiglu_alpha", 1.702, 1e-3, kLargestActivation));
  rule.limit = static_cast<float>(config.number_or("swiglu_limit", 7.0, 1e-3, kLargestActivation));
}

}  // namespace

void read_gpt_oss(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {.rms_eps = 1e-5, .rope_theta = kTheta, .head_dim = 64, .num_kv_heads = 8},
               spec);
  scale_rope_by_default(config, spec);
  read_experts(config, "intermediate_size", spec);
  read_sliding_window(config, {.default_use = true, .default_window = 128, .alternates = true},
                      spec);
  spec.qkv_bias = spec.out_bias = config.flag_or("attention_bias", true);
  spec.has_sinks = true;
  // The softmax over the chosen logits is that over all, renormalised.
  spec.router.renormalize = true;
  spec.has_router_bias = true;
  spec.has_expert_biases = true;
  read_activation(config, spec.expert_activation);
}

TensorNames gpt_oss_names() {
  return {.router = "router.weight", .interleaved_experts = true, .router_bias = "router.bias"};
}

}  // namespace fastfd::model
