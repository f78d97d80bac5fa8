#include <cmath>
#include <vector>

#include "kernels/gated_delta_net/op.h"

namespace fastfd::kernels {
namespace {

constexpr float kNormEps = 1e-6F;  // of queries and keys

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

void normalize(float* x, std::int64_t dim, float scale) {
  float sum = kNormEps;
  for (std::int64_t i = 0; i < dim; ++i) {
    sum += x[i] * x[i];
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    x[i] *= scale / std::sqrt(sum);
  }
}

/// Takes the row's projections into the convolution's memory; silu of its output.
std::vector<float> convolve(const GatedDeltaNetParams& params, const GatedDeltaNetSpan& span,
                            const float* row) {
  const std::int64_t dim = params.shape.conv_dim();
  const std::int64_t kernel = params.shape.conv_kernel;
  std::vector<float> out(static_cast<std::size_t>(dim));
  for (std::int64_t c = 0; c < dim; ++c) {
    float sum = params.conv_weight[(kernel - 1) * dim + c] * row[c];
    for (std::int64_t tap = 0; tap + 1 < kernel; ++tap) {
      sum += params.conv_weight[tap * dim + c] * span.conv_state[tap * dim + c];
    }
    for (std::int64_t tap = 0; tap + 2 < kernel; ++tap) {
      span.conv_state[tap * dim + c] = span.conv_state[(tap + 1) * dim + c];
    }
    span.conv_state[(kernel - 2) * dim + c] = row[c];
    out[static_cast<std::size_t>(c)] = sum * sigmoid(sum);
  }
  return out;
}

/// Column `v` of one head's matrix.
struct StateColumn {
  float* first;
  float& operator[](std::int64_t key) const { return first[key * kDeltaTileColumns]; }
};

StateColumn column_of(const GatedDeltaNetShape& shape, float* state, std::int64_t head,
                      std::int64_t v) {
  const std::int64_t tile = head * shape.tiles_per_head() + v / kDeltaTileColumns;
  return {state + tile * shape.k_head_dim * kDeltaTileColumns + v % kDeltaTileColumns};
}

void run_head(const GatedDeltaNetParams& params, const GatedDeltaNetSpan& span, const float* row,
              const float* q, const float* k, const float* values, std::int64_t head, float* out) {
  const GatedDeltaNetShape& shape = params.shape;
  const float* z = row + shape.conv_dim() + head * shape.v_head_dim;
  const float b = row[shape.conv_dim() + shape.value_dim() + head];
  const float a = row[shape.conv_dim() + shape.value_dim() + shape.num_v_heads + head];
  const float decay = std::exp(-std::exp(params.a_log[head]) * softplus(a + params.dt_bias[head]));
  float sum = 0.0F;
  for (std::int64_t v = 0; v < shape.v_head_dim; ++v) {
    const StateColumn state = column_of(shape, span.recurrent_state, head, v);
    float predicted = 0.0F;
    for (std::int64_t i = 0; i < shape.k_head_dim; ++i) {
      state[i] *= decay;
      predicted += k[i] * state[i];
    }
    const float delta = sigmoid(b) * (values[v] - predicted);
    float o = 0.0F;
    for (std::int64_t i = 0; i < shape.k_head_dim; ++i) {
      state[i] += k[i] * delta;
      o += q[i] * state[i];
    }
    out[v] = o;
    sum += o * o;
  }
  const float norm = 1.0F / std::sqrt(sum / static_cast<float>(shape.v_head_dim) + params.eps);
  for (std::int64_t v = 0; v < shape.v_head_dim; ++v) {
    out[v] = out[v] * norm * params.norm_weight[v] * z[v] * sigmoid(z[v]);
  }
}

void run_row(const GatedDeltaNetParams& params, const GatedDeltaNetSpan& span, std::int64_t row) {
  const GatedDeltaNetShape& shape = params.shape;
  const float* projected = params.projected + row * shape.row_dim();
  std::vector<float> mixed = convolve(params, span, projected);
  float* q = mixed.data();
  float* k = q + shape.num_k_heads * shape.k_head_dim;
  const float* v = k + shape.num_k_heads * shape.k_head_dim;
  for (std::int64_t head = 0; head < shape.num_k_heads; ++head) {
    normalize(q + head * shape.k_head_dim, shape.k_head_dim,
              1.0F / std::sqrt(static_cast<float>(shape.k_head_dim)));
    normalize(k + head * shape.k_head_dim, shape.k_head_dim, 1.0F);
  }
  for (std::int64_t head = 0; head < shape.num_v_heads; ++head) {
    const std::int64_t k_head = head / (shape.num_v_heads / shape.num_k_heads);
    run_head(params, span, projected, q + k_head * shape.k_head_dim, k + k_head * shape.k_head_dim,
             v + head * shape.v_head_dim, head,
             params.out + row * shape.value_dim() + head * shape.v_head_dim);
  }
}

}  // namespace

void reference_gated_delta_net(const GatedDeltaNetParams& params) {
  for (const GatedDeltaNetSpan& span : params.spans) {
    if (span.begins) {
      std::fill_n(span.conv_state, params.shape.conv_state_floats(), 0.0F);
      std::fill_n(span.recurrent_state, params.shape.recurrent_state_floats(), 0.0F);
    }
    for (std::int64_t row = 0; row < span.num_rows; ++row) {
      run_row(params, span, span.first_row + row);
    }
  }
}

}  // namespace fastfd::kernels
