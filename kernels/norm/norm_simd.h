#pragma once

#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

inline void rms_norm(const float* x, const float* weight, float* y, std::int64_t dim, float eps) {
  Vec sums[2] = {zero(), zero()};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    const Vec a = load(x + i);
    const Vec b = load(x + i + kLanes);
    sums[0] = fma(a, a, sums[0]);
    sums[1] = fma(b, b, sums[1]);
  }
  for (; i < dim; i += kLanes) {
    const Vec a = i + kLanes <= dim ? load(x + i) : load_partial(x + i, dim - i);
    sums[0] = fma(a, a, sums[0]);
  }
  const float mean = reduce_add(add(sums[0], sums[1])) / static_cast<float>(dim);
  const Vec inverse = set1(1.0F / __builtin_sqrtf(mean + eps));
  for (i = 0; i + kLanes <= dim; i += kLanes) {
    store(y + i, mul(mul(load(x + i), inverse), load(weight + i)));
  }
  if (i < dim) {
    const Vec scaled = mul(load_partial(x + i, dim - i), inverse);
    store_partial(y + i, mul(scaled, load_partial(weight + i, dim - i)), dim - i);
  }
}

FASTFD_INLINE Vec load_row(const void* row, bool is_bf16, std::int64_t i, std::int64_t dim) {
  const bool full = i + kLanes <= dim;
  if (is_bf16) {
    const Bf16Bits* p = static_cast<const Bf16Bits*>(row) + i;
    return full ? load_bf16(p) : load_bf16_partial(p, dim - i);
  }
  const float* p = static_cast<const float*>(row) + i;
  return full ? load(p) : load_partial(p, dim - i);
}

inline void add_partials(float* residual, const void* const* partials, std::int64_t num_partials,
                         std::int64_t partial_stride, bool partial_is_bf16, std::int64_t dim) {
  for (std::int64_t i = 0; i < dim; i += kLanes) {
    Vec sum = zero();
    for (std::int64_t rank = 0; rank < num_partials; ++rank) {
      const void* row = partials[rank * partial_stride];
      if (row != nullptr) {
        sum = add(sum, load_row(row, partial_is_bf16, i, dim));
      }
    }
    if (i + kLanes <= dim) {
      store(residual + i, add(load(residual + i), sum));
    } else {
      store_partial(residual + i, add(load_partial(residual + i, dim - i), sum), dim - i);
    }
  }
}

inline void rotate(float* x, const float* cos, const float* sin, std::int64_t half) {
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i);
    const Vec b = load(x + half + i);
    const Vec c = load(cos + i);
    const Vec s = load(sin + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
