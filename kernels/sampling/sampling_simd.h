#pragma once

#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

inline float max_element(const float* x, std::int64_t num, bool* has_nan) {
  const float lowest = -__builtin_inff();
  Vec largest[2] = {set1(lowest), set1(lowest)};
  unsigned ordered = ~0U;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= num; i += 2 * kLanes) {
    const Vec a = load(x + i);
    const Vec b = load(x + i + kLanes);
    ordered &= mask_at_least(a, a) & mask_at_least(b, b);
    largest[0] = max(a, largest[0]);
    largest[1] = max(b, largest[1]);
  }
  for (; i < num; i += kLanes) {
    const Vec a = i + kLanes <= num ? load(x + i) : load_partial(x + i, num - i, lowest);
    ordered &= mask_at_least(a, a);
    largest[0] = max(a, largest[0]);
  }
  constexpr unsigned kAllLanes = (1U << kLanes) - 1;
  *has_nan = num > 0 && (ordered & kAllLanes) != kAllLanes;
  return reduce_max(max(largest[0], largest[1]));
}

inline std::int64_t find_at_least(const float* x, std::int64_t begin, std::int64_t num,
                                  float bound) {
  const Vec b = set1(bound);
  std::int64_t i = begin;
  for (; i + 4 * kLanes <= num; i += 4 * kLanes) {
    const Vec upper = max(max(load(x + i), load(x + i + kLanes)),
                          max(load(x + i + 2 * kLanes), load(x + i + 3 * kLanes)));
    if (mask_at_least(upper, b) != 0) {
      break;
    }
  }
  for (; i + kLanes <= num; i += kLanes) {
    const unsigned mask = mask_at_least(load(x + i), b);
    if (mask != 0) {
      return i + __builtin_ctz(mask);
    }
  }
  for (; i < num; ++i) {
    if (x[i] >= bound) {
      return i;
    }
  }
  return num;
}

inline double exp_sum(const float* x, std::int64_t num, float largest, float scale, float* y) {
  // Lanes are summed in float over short stretches, stretches in double: the error stays near one
  // part in 10^7 however large the vocabulary.
  constexpr std::int64_t kStretch = 32 * kLanes;
  const Vec m = set1(largest);
  const Vec s = set1(scale);
  double total = 0.0;
  for (std::int64_t begin = 0; begin < num; begin += kStretch) {
    const std::int64_t end = begin + kStretch < num ? begin + kStretch : num;
    Vec sum = zero();
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const Vec e = exp(mul(sub(load(x + i), m), s));
      sum = add(sum, e);
      if (y != nullptr) {
        store(y + i, e);
      }
    }
    if (i < end) {
      const Vec tail = load_partial(x + i, end - i, -__builtin_inff());
      const Vec e = exp(mul(sub(tail, m), s));
      sum = add(sum, e);
      if (y != nullptr) {
        store_partial(y + i, e, end - i);
      }
    }
    total += static_cast<double>(reduce_add(sum));
  }
  return total;
}

}  // namespace fastfd::kernels::FASTFD_SIMD
