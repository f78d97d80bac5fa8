#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/router/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Keeps the top_k largest values sorted while they pass in ascending id; an equal one that comes
/// later stays behind, so ties go to the lower id. NaN is never larger.
template <typename Index>
void select_top_k(const float* values, std::int64_t num_values, std::int64_t top_k, Index* ids,
                  float* kept) {
  for (std::int64_t id = 0; id < num_values; ++id) {
    const float value = values[id];
    std::int64_t slot = id;
    if (id >= top_k) {
      if (!(value > kept[top_k - 1])) {
        continue;
      }
      slot = top_k - 1;
    }
    for (; slot > 0 && value > kept[slot - 1]; --slot) {
      kept[slot] = kept[slot - 1];
      ids[slot] = ids[slot - 1];
    }
    kept[slot] = value;
    ids[slot] = static_cast<Index>(id);
  }
}

/// A row's intermediate values.
struct Scratch {
  float* scores;         ///< [num_experts], what weighs
  float* choice;         ///< [num_experts], what chooses
  float* group_scores;   ///< [num_groups]
  float* kept_groups;    ///< [top_groups]
  std::int32_t* groups;  ///< [top_groups]

  static Scratch of(const RouterParams& params, device::HostBuffer& memory) {
    const std::int64_t num_groups = params.rule.num_groups;
    auto* at = simd::reserve<float>(memory, 2 * params.num_experts + 3 * num_groups);
    Scratch scratch{};
    scratch.scores = at;
    scratch.choice = at + params.num_experts;
    scratch.group_scores = scratch.choice + params.num_experts;
    scratch.kept_groups = scratch.group_scores + num_groups;
    static_assert(sizeof(std::int32_t) == sizeof(float));
    scratch.groups = reinterpret_cast<std::int32_t*>(scratch.kept_groups + num_groups);
    return scratch;
  }
};

void score(const RouterParams& params, const simd::KernelTable& table, const float* logits,
           float* scores) {
  if (params.rule.scoring == RouterScoring::kSigmoid) {
    for (std::int64_t i = 0; i < params.num_experts; ++i) {
      scores[i] = 1.0F / (1.0F + std::exp(-logits[i]));
    }
    return;
  }
  bool has_nan = false;
  const float largest = table.max_element(logits, params.num_experts, &has_nan);
  const auto total =
      static_cast<float>(table.exp_sum(logits, params.num_experts, largest, 1.0F, scores));
  for (std::int64_t i = 0; i < params.num_experts; ++i) {
    scores[i] /= total;
  }
}

float group_score(GroupScore kind, const float* values, std::int64_t size) {
  float best[2] = {kNever, kNever};
  std::int32_t ids[2];
  select_top_k(values, size, std::min<std::int64_t>(size, 2), ids, best);
  return kind == GroupScore::kTopTwoSum && size > 1 ? best[0] + best[1] : best[0];
}

/// Takes the experts of all but the best groups out of the choice.
void limit_to_groups(const RouterParams& params, const Scratch& scratch) {
  const std::int64_t num_groups = params.rule.num_groups;
  const std::int64_t size = params.num_experts / num_groups;
  for (std::int64_t group = 0; group < num_groups; ++group) {
    scratch.group_scores[group] =
        group_score(params.rule.group_score, scratch.choice + group * size, size);
  }
  const std::int64_t top = params.rule.top_groups;
  select_top_k(scratch.group_scores, num_groups, top, scratch.groups, scratch.kept_groups);
  const std::int32_t* end = scratch.groups + top;
  for (std::int64_t group = 0; group < num_groups; ++group) {
    if (std::find(scratch.groups, const_cast<std::int32_t*>(end), group) == end) {
      std::fill_n(scratch.choice + group * size, size, kNever);
    }
  }
}

void run_row(const RouterParams& params, const simd::KernelTable& table, std::int64_t row,
             const Scratch& scratch) {
  score(params, table, params.logits + row * params.num_experts, scratch.scores);
  for (std::int64_t i = 0; i < params.num_experts; ++i) {
    scratch.choice[i] =
        scratch.scores[i] + (params.correction_bias != nullptr ? params.correction_bias[i] : 0.0F);
  }
  if (params.rule.top_groups < params.rule.num_groups) {
    limit_to_groups(params, scratch);
  }
  std::int32_t* experts = params.experts + row * params.top_k;
  float* weights = params.weights + row * params.top_k;
  select_top_k(scratch.choice, params.num_experts, params.top_k, experts, weights);
  float kept = 0.0F;
  for (std::int64_t i = 0; i < params.top_k; ++i) {
    weights[i] = scratch.scores[experts[i]];
    kept += weights[i];
  }
  for (std::int64_t i = 0; i < params.top_k; ++i) {
    weights[i] =
        (params.rule.renormalize ? weights[i] / kept : weights[i]) * params.rule.scaling_factor;
  }
}

Status check_shape(const RouterParams& params) {
  const std::int64_t num_groups = params.rule.num_groups;
  const std::int64_t top_groups = params.rule.top_groups;
  if (num_groups < 1 || params.num_experts % num_groups != 0 || top_groups < 1 ||
      top_groups > num_groups) {
    return {StatusCode::kInvalidArgument, fmt::format("router: {} of {} groups of {} experts",
                                                      top_groups, num_groups, params.num_experts)};
  }
  const std::int64_t most = params.num_experts / num_groups * top_groups;
  if (params.top_k < 1 || params.top_k > most) {
    return {StatusCode::kInvalidArgument,
            fmt::format("router: top_k is {} and must be 1 .. {} experts", params.top_k, most)};
  }
  return Status::ok();
}

}  // namespace

Status launch_router(const RouterParams& params, const device::CpuStream& stream) {
  if (auto status = check_shape(params); !status) {
    return status;
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto elements = static_cast<double>(params.num_rows * params.num_experts);
  simd::split(stream, params.num_rows, 1,
              simd::estimated_microseconds(200.0 * elements, 4.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                thread_local device::HostBuffer memory;
                const Scratch scratch = Scratch::of(params, memory);
                for (std::int64_t row = begin; row < end; ++row) {
                  run_row(params, table, row, scratch);
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
