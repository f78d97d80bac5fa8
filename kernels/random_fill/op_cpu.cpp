#include "kernels/random_fill/generator.h"
#include "kernels/random_fill/op.h"

namespace fastfd::kernels {

void random_fill(const RandomFillParams& params) {
  const float step = params.stddev / kRandomNormalSteps;
  for (std::uint64_t i = 0; i < params.count; ++i) {
    params.out[i] = random_normal(params.key, params.first + i, step);
  }
}

}  // namespace fastfd::kernels
