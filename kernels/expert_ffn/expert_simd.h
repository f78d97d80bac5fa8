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

inline void clamped_swiglu(const float* gate_up, float* hidden, float alpha, float limit) {
  constexpr int kUnits = 32;
  const Vec one = set1(1.0F);
  const Vec most = set1(limit);
  const Vec least = set1(-limit);
  for (int i = 0; i < kUnits; i += kLanes) {
    // In this order a NaN passes.
    const Vec gate = min(most, load(gate_up + i));
    const Vec up = max(least, min(most, load(gate_up + kUnits + i)));
    const Vec glu = div(gate, add(one, exp(mul(gate, set1(-alpha)))));
    store(hidden + i, mul(add(up, one), glu));
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
