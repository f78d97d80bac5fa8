#include <cmath>
#include <vector>

#include "kernels/rope/op.h"

namespace fastfd::kernels {
namespace {

void norm_head(float* x, const float* weight, std::int64_t head_dim, float eps) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    sum += x[i] * x[i];
  }
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(head_dim) + eps);
  for (std::int64_t i = 0; i < head_dim; ++i) {
    x[i] = x[i] * inverse * weight[i];
  }
}

void rotate_head(float* x, std::int32_t position, const RopeTable& table) {
  const std::int64_t half = table.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float cos = table.cos[static_cast<std::size_t>(position * half + i)];
    const float sin = table.sin[static_cast<std::size_t>(position * half + i)];
    const float first = x[i];
    const float second = x[i + half];
    x[i] = first * cos - second * sin;
    x[i + half] = second * cos + first * sin;
  }
}

}  // namespace

void reference_qk_norm_rope(const QkNormRopeParams& params) {
  const std::int64_t row_dim = (params.num_q_heads + 2 * params.num_kv_heads) * params.head_dim;
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    for (std::int64_t head = 0; head < params.num_q_heads + params.num_kv_heads; ++head) {
      float* x = params.qkv + row * row_dim + head * params.head_dim;
      const float* weight = head < params.num_q_heads ? params.q_norm_weight : params.k_norm_weight;
      if (weight != nullptr) {
        norm_head(x, weight, params.head_dim, params.eps);
      }
      rotate_head(x, params.positions[row], *params.table);
    }
  }
}

}  // namespace fastfd::kernels
