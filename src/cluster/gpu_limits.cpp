#include "cluster/gpu_limits.h"

#include <fmt/format.h>

#include "kernels/gated_delta_net/op_cuda.h"

namespace fastfd::cluster {
namespace {

constexpr std::uint32_t kTile = 128;
constexpr std::uint32_t kMostHidden = 8192;
constexpr std::uint32_t kGroup = 8;  // values that are loaded at once
constexpr std::uint32_t kLatentRank = 512;
constexpr std::uint32_t kLatentRope = 64;
constexpr std::uint32_t kMostExpertGroups = 32;

std::string attention_that_gpus_lack(const model::ModelSpec& spec) {
  const auto& latent = spec.latent;
  if (spec.num_layers_of(model::AttentionKind::kLatent) > 0 &&
      (latent.kv_rank != kLatentRank || latent.rope_dim != kLatentRope ||
       (latent.q_rank | latent.nope_dim | latent.value_dim) % kGroup != 0)) {
    return fmt::format(
        "latent attention over rows of {} + {} elements, with queries out of {}, {} of them not "
        "rotated, and values of {} ({} + {} can, and multiples of {})",
        latent.kv_rank, latent.rope_dim, latent.q_rank, latent.nope_dim, latent.value_dim,
        kLatentRank, kLatentRope, kGroup);
  }
  const auto& delta = spec.gated_delta_net;
  if (spec.has_recurrent_state() &&
      (!kernels::cuda::is_supported(delta) || delta.row_dim() % kGroup != 0)) {
    return fmt::format(
        "gated delta net layers of {} heads, {} wide, over keys {} wide (multiples of 4, multiples "
        "of 32 up to 256, and 64, 128 or 256 can)",
        delta.num_v_heads, delta.v_head_dim, delta.k_head_dim);
  }
  if (spec.num_layers_of(model::AttentionKind::kFull) > 0 && spec.head_dim != 64 &&
      spec.head_dim != 128 && spec.head_dim != 256) {
    return fmt::format("head_dim {} (64, 128 and 256 can)", spec.head_dim);
  }
  return {};
}

}  // namespace

std::string what_gpus_lack(const model::ModelSpec& spec, std::uint32_t max_model_len) {
  if (spec.hidden_dim % kTile != 0 || spec.hidden_dim > kMostHidden) {
    return fmt::format("hidden_size {} (multiples of {} up to {} can)", spec.hidden_dim, kTile,
                       kMostHidden);
  }
  if (spec.router.num_groups > kMostExpertGroups) {
    return fmt::format("{} groups of experts (up to {} can)", spec.router.num_groups,
                       kMostExpertGroups);
  }
  if (spec.shared_intermediate_dim % kGroup != 0) {
    return fmt::format("shared experts {} wide (multiples of {} can)", spec.shared_intermediate_dim,
                       kGroup);
  }
  if (spec.has_router_bias || spec.has_expert_biases ||
      spec.expert_activation.kind != kernels::GatedActivation::kSwiglu) {
    return "biases and clamped activations of experts";
  }
  if (spec.has_sinks) {
    return "attention sinks";
  }
  if (const std::uint32_t window = spec.smallest_window(); window != 0 && window < max_model_len) {
    return fmt::format("sliding windows of {} tokens (up to a model.max_model_len of {} they can)",
                       window, window);
  }
  return attention_that_gpus_lack(spec);
}

}  // namespace fastfd::cluster
