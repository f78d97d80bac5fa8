#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/router/op.h"

namespace fastfd::kernels {

void reference_router(const RouterParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* logits = params.logits + row * params.num_experts;
    std::vector<float> weights(logits, logits + params.num_experts);
    const float largest = *std::max_element(weights.begin(), weights.end());
    float total = 0.0F;
    for (float& weight : weights) {
      weight = std::exp(weight - largest);
      total += weight;
    }
    for (float& weight : weights) {
      weight /= total;
    }
    std::vector<std::int32_t> order(weights.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
    });
    float kept = 0.0F;
    for (std::int64_t i = 0; i < params.top_k; ++i) {
      kept += weights[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
    }
    for (std::int64_t i = 0; i < params.top_k; ++i) {
      const std::int32_t expert = order[static_cast<std::size_t>(i)];
      const float weight = weights[static_cast<std::size_t>(expert)];
      params.experts[row * params.top_k + i] = expert;
      params.weights[row * params.top_k + i] = params.renormalize ? weight / kept : weight;
    }
  }
}

}  // namespace fastfd::kernels
