#include <cmath>

#include "kernels/norm/op.h"

namespace fastfd::kernels {

void reference_rms_norm(const RmsNormParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* x = params.x + row * params.dim;
    float sum = 0.0F;
    for (std::int64_t i = 0; i < params.dim; ++i) {
      sum += x[i] * x[i];
    }
    const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(params.dim) + params.eps);
    for (std::int64_t i = 0; i < params.dim; ++i) {
      params.y[row * params.dim + i] = x[i] * inverse * params.weight[i];
    }
  }
}

void reference_combine_norm(const CombineNormParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    float* residual = params.residual + row * params.dim;
    for (std::int64_t i = 0; i < params.dim; ++i) {
      float sum = 0.0F;
      for (std::int64_t rank = 0; rank < params.num_ranks; ++rank) {
        const void* partial = params.partials[rank * params.num_rows + row];
        if (partial == nullptr) {
          continue;
        }
        sum += params.partial_dtype == DType::kFloat32
                   ? static_cast<const float*>(partial)[i]
                   : static_cast<const bf16*>(partial)[i].to_float();
      }
      residual[i] += sum;
    }
  }
  if (params.weight != nullptr) {
    reference_rms_norm({.num_rows = params.num_rows,
                        .dim = params.dim,
                        .x = params.residual,
                        .weight = params.weight,
                        .y = params.y,
                        .eps = params.eps});
  }
}

}  // namespace fastfd::kernels
