#pragma once

#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

inline void swiglu(const float* gate_up, float* hidden) {
  constexpr int kUnits = 32;  // half a weight panel: a multiple of every kLanes
  const Vec one = set1(1.0F);
  for (int i = 0; i < kUnits; i += kLanes) {
    const Vec gate = load(gate_up + i);
    const Vec silu = div(gate, add(one, exp(sub(zero(), gate))));
    store(hidden + i, mul(silu, load(gate_up + kUnits + i)));
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
