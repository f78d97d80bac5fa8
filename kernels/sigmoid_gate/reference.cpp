#include <cmath>

#include "kernels/sigmoid_gate/op.h"

namespace fastfd::kernels {

void reference_sigmoid_gate(const SigmoidGateParams& params) {
  for (std::int64_t i = 0; i < params.num_rows * params.dim; ++i) {
    params.y[i] /= 1.0F + std::exp(-params.gate[i]);
  }
}

}  // namespace fastfd::kernels
