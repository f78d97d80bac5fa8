#include "model/deepseek.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/decoder_config.h"
#include "model/rope_config.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr std::uint32_t kMostRank = 1U << 16;
constexpr std::uint32_t kMostHeadDim = 1U << 10;
constexpr const char* kRemedy = "use the config.json that belongs to the checkpoint";

/// q_lora_rank: null says that queries have no bottleneck; a config.json without the key has one.
std::uint32_t read_q_rank(const HfConfig& config) {
  constexpr std::uint32_t kDefault = 1536;
  return config.count_or("q_lora_rank", config.json().contains("q_lora_rank") ? 0 : kDefault, 1,
                         kMostRank);
}

void read_latent(const HfConfig& config, ModelSpec& spec) {
  LatentSpec& latent = spec.latent;
  latent.num_heads = spec.num_q_heads;
  latent.q_rank = read_q_rank(config);
  latent.kv_rank = config.count_or("kv_lora_rank", 512, 1, kMostRank);
  latent.nope_dim = config.count_or("qk_nope_head_dim", 128, 1, kMostHeadDim);
  latent.rope_dim = spec.head_dim;
  latent.value_dim = config.count_or("v_head_dim", 128, 1, kMostHeadDim);
  latent.scale = static_cast<float>(read_rope_score_factor(config) /
                                    std::sqrt(static_cast<double>(latent.query_dim())));
  spec.rope.rotary_dim = latent.rope_dim;
  // Nothing of AttentionKind::kFull is there.
  spec.num_q_heads = spec.num_kv_heads = spec.head_dim = 0;
}

/// The first layers are dense, the others have experts and shared ones.
void read_layers(const HfConfig& config, std::uint32_t default_num_dense, ModelSpec& spec) {
  if (config.count_or("moe_layer_freq", 1, 1, kMostLayers) != 1) {
    config.fail("moe_layer_freq", "dense layers among those with experts are not supported",
                "use a model with moe_layer_freq 1");
  }
  const std::uint32_t num_dense =
      config.count_or("first_k_dense_replace", default_num_dense, 0, kMostLayers);
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    spec.layers[layer] = {.attention = AttentionKind::kLatent,
                          .ffn = layer < num_dense ? FfnKind::kDense : FfnKind::kExperts};
  }
  if (spec.has_layer(FfnKind::kDense)) {
    read_dense_ffn(config, spec);
  }
}

void read_groups(const HfConfig& config, std::uint32_t default_groups, std::uint32_t default_top,
                 kernels::GroupScore score, ModelSpec& spec) {
  kernels::RouterRule& rule = spec.router;
  rule.group_score = score;
  rule.num_groups = config.count_or("n_group", default_groups, 1, kMostExperts);
  rule.top_groups = config.count_or("topk_group", default_top, 1, kMostExperts);
  if (spec.num_experts % rule.num_groups != 0 || rule.top_groups > rule.num_groups) {
    config.fail("n_group",
                fmt::format("{} experts in {} groups, of which {} are chosen, is impossible",
                            spec.num_experts, rule.num_groups, rule.top_groups),
                kRemedy);
  }
  const std::uint32_t group_experts = spec.num_experts / rule.num_groups;
  if (spec.experts_per_token > rule.top_groups * group_experts) {
    config.fail("topk_group",
                fmt::format("{} groups of {} experts can't give num_experts_per_tok = {}",
                            rule.top_groups, group_experts, spec.experts_per_token),
                kRemedy);
  }
  if (score == kernels::GroupScore::kTopTwoSum && rule.num_groups > 1 && group_experts < 2) {
    config.fail("n_group", "groups of one expert have no two best", kRemedy);
  }
}

void read_common(const HfConfig& config, ModelSpec& spec) {
  // transformers calls the rotated part a head; what else config.json may call head_dim means
  // nothing.
  read_decoder(config, {.head_dim = config.count_or("qk_rope_head_dim", 64, 2, kMostHeadDim)},
               spec);
  spec.head_dim = config.count_or("qk_rope_head_dim", 64, 2, kMostHeadDim);
  if (spec.head_dim % 2 != 0) {
    config.fail("qk_rope_head_dim", fmt::format("{} is no even number", spec.head_dim), kRemedy);
  }
  refuse_flag(config, "attention_bias", "biases of attention projections");
  read_experts(config, "moe_intermediate_size", spec);
  read_latent(config, spec);
}

void read_shared_experts(const HfConfig& config, std::uint32_t default_count, ModelSpec& spec) {
  spec.shared_intermediate_dim =
      spec.expert_intermediate_dim *
      config.count_or("n_shared_experts", default_count, 1, kMostExperts);
}

}  // namespace

void read_deepseek_v2(const HfConfig& config, ModelSpec& spec) {
  read_common(config, spec);
  read_layers(config, 0, spec);
  read_shared_experts(config, 2, spec);
  refuse_flag(config, "mlp_bias", "biases of FFNs");
  require_text(config, "scoring_func", "softmax");
  refuse_flag(config, "norm_topk_prob", "routes of DeepSeek-V2 that sum to 1");
  spec.router.scoring = kernels::RouterScoring::kSoftmax;
  spec.router.renormalize = false;
  spec.router.scaling_factor =
      static_cast<float>(config.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6));
  if (const auto method = config.text_or("topk_method", "greedy");
      method == "group_limited_greedy") {
    read_groups(config, 1, 1, kernels::GroupScore::kMax, spec);
  } else if (method != "greedy") {
    config.fail("topk_method", quote_name(method) + " is not supported",
                "use a model with 'greedy' or 'group_limited_greedy'");
  }
}

void read_deepseek_v3(const HfConfig& config, ModelSpec& spec) {
  read_common(config, spec);
  read_layers(config, 3, spec);
  read_shared_experts(config, 1, spec);
  require_text(config, "scoring_func", "sigmoid");
  require_text(config, "topk_method", "noaux_tc");
  spec.latent.interleaved_rope = config.flag_or("rope_interleave", true);
  spec.num_prediction_layers = config.count_or("num_nextn_predict_layers", 0, 0, kMostLayers);
  spec.router.scoring = kernels::RouterScoring::kSigmoid;
  spec.router.renormalize = config.flag_or("norm_topk_prob", true);
  spec.router.scaling_factor =
      static_cast<float>(config.number_or("routed_scaling_factor", 2.5, 1e-6, 1e6));
  spec.has_correction_bias = true;
  read_groups(config, 8, 4, kernels::GroupScore::kTopTwoSum, spec);
}

}  // namespace fastfd::model
