#include <cmath>
#include <vector>

#include "kernels/rope/op.h"

namespace fastfd::kernels {
namespace {

void norm(float* x, const float* weight, std::int64_t dim, float eps) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < dim; ++i) {
    sum += x[i] * x[i];
  }
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(dim) + eps);
  for (std::int64_t i = 0; i < dim; ++i) {
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
    if (params.norm == QkNorm::kWhole) {
      float* q = params.qkv + row * row_dim;
      const std::int64_t q_dim = params.num_q_heads * params.head_dim;
      norm(q, params.q_norm_weight, q_dim, params.eps);
      norm(q + q_dim, params.k_norm_weight, params.num_kv_heads * params.head_dim, params.eps);
    }
    for (std::int64_t head = 0; head < params.num_q_heads + params.num_kv_heads; ++head) {
      float* x = params.qkv + row * row_dim + head * params.head_dim;
      if (params.norm == QkNorm::kPerHead) {
        norm(x, head < params.num_q_heads ? params.q_norm_weight : params.k_norm_weight,
             params.head_dim, params.eps);
      }
      rotate_head(x, params.positions[row], *params.table);
    }
  }
}

}  // namespace fastfd::kernels
