#pragma once

#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

/// x * sigmoid(gate)
FASTFD_INLINE Vec gated(Vec x, Vec gate) { return div(x, add(set1(1.0F), exp(sub(zero(), gate)))); }

inline void sigmoid_gate(const float* gate, float* y, std::int64_t num) {
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store(y + i, gated(load(y + i), load(gate + i)));
  }
  if (i < num) {
    store_partial(y + i, gated(load_partial(y + i, num - i), load_partial(gate + i, num - i)),
                  num - i);
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
