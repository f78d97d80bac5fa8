#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/router/op.h"

namespace fastfd::kernels {
namespace {

std::vector<float> softmax(std::vector<float> values) {
  const float largest = *std::max_element(values.begin(), values.end());
  float total = 0.0F;
  for (float& value : values) {
    value = std::exp(value - largest);
    total += value;
  }
  for (float& value : values) {
    value /= total;
  }
  return values;
}

std::vector<float> sigmoid(std::vector<float> values) {
  for (float& value : values) {
    value = 1.0F / (1.0F + std::exp(-value));
  }
  return values;
}

/// Indices by descending value, lower first among equals.
std::vector<std::size_t> ranking(const std::vector<float>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

void drop_other_groups(const RouterRule& rule, std::vector<float>& choice) {
  const std::size_t size = choice.size() / rule.num_groups;
  std::vector<float> scores;
  for (std::size_t first = 0; first < choice.size(); first += size) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<float> group(begin, begin + static_cast<std::ptrdiff_t>(size));
    std::sort(group.rbegin(), group.rend());
    const bool both = rule.group_score == GroupScore::kTopTwoSum && size > 1;
    scores.push_back(both ? group[0] + group[1] : group[0]);
  }
  const auto order = ranking(scores);
  for (std::size_t i = rule.top_groups; i < order.size(); ++i) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(order[i] * size);
    std::fill_n(begin, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void reference_router(const RouterParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* logits = params.logits + row * params.num_experts;
    const std::vector<float> values(logits, logits + params.num_experts);
    const std::vector<float> scores =
        params.rule.scoring == RouterScoring::kSoftmax ? softmax(values) : sigmoid(values);
    std::vector<float> choice = scores;
    for (std::size_t i = 0; params.correction_bias != nullptr && i < choice.size(); ++i) {
      choice[i] += params.correction_bias[i];
    }
    drop_other_groups(params.rule, choice);
    const auto order = ranking(choice);
    const auto top_k = static_cast<std::size_t>(params.top_k);
    float kept = 0.0F;
    for (std::size_t i = 0; i < top_k; ++i) {
      kept += scores[order[i]];
    }
    for (std::size_t i = 0; i < top_k; ++i) {
      const std::int64_t at = row * params.top_k + static_cast<std::int64_t>(i);
      const float weight = scores[order[i]];
      params.experts[at] = static_cast<std::int32_t>(order[i]);
      params.weights[at] =
          (params.rule.renormalize ? weight / kept : weight) * params.rule.scaling_factor;
    }
  }
}

}  // namespace fastfd::kernels
