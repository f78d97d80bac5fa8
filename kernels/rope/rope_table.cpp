#include <cmath>

#include "fastfd/core/check.h"
#include "kernels/rope/op.h"

namespace fastfd::kernels {

RopeTable RopeTable::make(std::int64_t max_positions, std::int64_t rotary_dim, double theta) {
  check(max_positions >= 0 && rotary_dim >= 2 && rotary_dim % 2 == 0 && theta > 0.0,
        "a RoPE table needs an even rotary_dim and a positive theta");
  RopeTable table;
  table.max_positions = max_positions;
  table.rotary_dim = rotary_dim;
  const std::int64_t half = rotary_dim / 2;
  std::vector<float> inverse_frequency(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    inverse_frequency[static_cast<std::size_t>(i)] =
        1.0F / std::pow(static_cast<float>(theta), exponent);
  }
  table.cos.reserve(static_cast<std::size_t>(max_positions * half));
  table.sin.reserve(static_cast<std::size_t>(max_positions * half));
  for (std::int64_t position = 0; position < max_positions; ++position) {
    for (const float frequency : inverse_frequency) {
      const float angle = static_cast<float>(position) * frequency;
      table.cos.push_back(std::cos(angle));
      table.sin.push_back(std::sin(angle));
    }
  }
  return table;
}

}  // namespace fastfd::kernels
