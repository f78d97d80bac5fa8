#pragma once

#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

enum class RouterScoring : std::uint8_t {
  kSoftmax,  ///< over the experts
  kSigmoid,  ///< of each expert's logit
};

/// What a group of experts is worth to group-limited routing.
enum class GroupScore : std::uint8_t {
  kMax,        ///< its best expert (DeepSeek-V2, arXiv:2405.04434, 2.1.2)
  kTopTwoSum,  ///< its two best experts together (DeepSeek-V3, arXiv:2412.19437)
};

/// How scores become routes. The defaults are plain softmax routing.
struct RouterRule {
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool renormalize = true;      ///< weights of a row sum to 1, before scaling (`norm_topk_prob`)
  float scaling_factor = 1.0F;  ///< of the weights (`routed_scaling_factor`)
  /// Consecutive experts form num_groups groups of equal size; experts are chosen from the
  /// top_groups best of them. 1 of 1: from all.
  std::uint32_t num_groups = 1;
  std::uint32_t top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
};

/// Scores in float, then the top_k largest of score + correction_bias; the score alone weighs. Ties
/// go to the lower expert id, ties of groups to the lower group.
struct RouterParams {
  std::int64_t num_rows = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;                  ///< 1 .. num_experts in the chosen groups
  const float* logits = nullptr;           ///< [num_rows, num_experts]
  const float* correction_bias = nullptr;  ///< [num_experts] or nullptr
  RouterRule rule;
  std::int32_t* experts = nullptr;  ///< [num_rows, top_k], by descending score + bias
  float* weights = nullptr;         ///< [num_rows, top_k]
};
/// kInvalidArgument for a top_k or groups that the experts don't allow.
Status launch_router(const RouterParams& params, const device::CpuStream& stream);
void reference_router(const RouterParams& params);

}  // namespace fastfd::kernels
