#pragma once

#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

inline void to_bf16(const float* x, std::uint16_t* y, std::int64_t num) {
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store_bf16(y + i, load(x + i));
  }
  if (i < num) {
    store_bf16_partial(y + i, load_partial(x + i, num - i), num - i);
  }
}

inline void from_bf16(const std::uint16_t* x, float* y, std::int64_t num) {
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store(y + i, load_bf16(x + i));
  }
  if (i < num) {
    store_partial(y + i, load_bf16_partial(x + i, num - i), num - i);
  }
}

inline void round_bf16(const float* x, float* y, std::int64_t num) {
  std::uint16_t bits[kLanes];
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store_bf16(bits, load(x + i));
    store(y + i, load_bf16(bits));
  }
  if (i < num) {
    store_bf16(bits, load_partial(x + i, num - i));
    store_partial(y + i, load_bf16(bits), num - i);
  }
}

inline void axpy(float weight, const float* x, float* y, std::int64_t num) {
  const Vec w = set1(weight);
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store(y + i, fma(w, load(x + i), load(y + i)));
  }
  if (i < num) {
    store_partial(y + i, fma(w, load_partial(x + i, num - i), load_partial(y + i, num - i)),
                  num - i);
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
