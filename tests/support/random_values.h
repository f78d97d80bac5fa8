#pragma once

/// Seeded numbers for tests, and their rounding.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "fastfd/core/dtype.h"

namespace fastfd::test {

/// Normally distributed.
inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float scale = 1.0F,
                                        float mean = 0.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(engine);
  }
  return values;
}

inline std::vector<bf16> to_bf16(const std::vector<float>& values) {
  std::vector<bf16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) {
    rounded.push_back(bf16::from_float(value));
  }
  return rounded;
}

inline std::vector<float> to_floats(const std::vector<bf16>& values) {
  std::vector<float> floats;
  floats.reserve(values.size());
  for (const bf16 value : values) {
    floats.push_back(value.to_float());
  }
  return floats;
}

}  // namespace fastfd::test
