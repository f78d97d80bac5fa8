#include "kernels/gemm/op.h"

namespace fastfd::kernels {

void reference_gemm(const GemmParams& params) {
  const PackedWeights& w = *params.weights;
  for (std::int64_t i = 0; i < params.m; ++i) {
    for (std::int64_t j = 0; j < w.n(); ++j) {
      float sum = 0.0F;
      for (std::int64_t p = 0; p < w.k(); ++p) {
        float a = params.a[i * params.lda + p];
        if (params.precision == Precision::kBFloat16) {
          a = bf16::from_float(a).to_float();
        }
        sum += a * w.at(j, p).to_float();
      }
      if (params.bias != nullptr) {
        sum += params.bias[j];
      }
      float& c = params.c[i * params.ldc + j];
      c = params.accumulate ? c + sum : sum;
    }
  }
}

}  // namespace fastfd::kernels
