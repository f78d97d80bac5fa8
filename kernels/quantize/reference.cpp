#include <algorithm>
#include <cmath>
#include <limits>

#include "fastfd/core/check.h"
#include "kernels/layout/row.h"
#include "kernels/quantize/op.h"

namespace fastfd::kernels {

// e4m3: 4 bits of exponent with bias 7, 3 of mantissa, no infinity; 0x7f is NaN.
std::uint8_t to_e4m3(float value) {
  constexpr int kSmallestExponent = -6;  // below, steps stay as wide: subnormal
  constexpr int kMantissaBits = 3;
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    return sign | 0x7f;
  }
  if (magnitude >= layout::kLargestE4M3) {
    return sign | 0x7e;
  }
  const int exponent =
      magnitude == 0.0F ? kSmallestExponent : std::max(std::ilogb(magnitude), kSmallestExponent);
  // Steps of this exponent, exact; nearbyint rounds ties to even.
  const auto steps =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, kMantissaBits - exponent)));
  // 8 steps are the implicit bit. 16 carry into the exponent, which the addition below does.
  const int bits = ((exponent - kSmallestExponent) << kMantissaBits) + steps;
  return sign | static_cast<std::uint8_t>(bits);
}

float from_e4m3(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 7;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

void reference_quantize(const QuantizeParams& params) {
  check(params.rows % kQuantizeBlock == 0 && params.cols % kQuantizeBlock == 0,
        "quantize: rows and columns must be multiples of 128");
  const std::int64_t block_cols = params.cols / kQuantizeBlock;
  for (std::int64_t block = 0; block < params.rows / kQuantizeBlock * block_cols; ++block) {
    const std::int64_t begin =
        block / block_cols * kQuantizeBlock * params.cols + block % block_cols * kQuantizeBlock;
    const auto for_each = [&](const auto& body) {
      for (std::int64_t i = 0; i < kQuantizeBlock; ++i) {
        for (std::int64_t j = 0; j < kQuantizeBlock; ++j) {
          body(begin + i * params.cols + j);
        }
      }
    };
    float largest = 0.0F;
    for_each([&](std::int64_t at) {
      largest = std::max(largest, std::fabs(params.values[at].to_float()));
    });
    float scale = largest / layout::kLargestE4M3;
    scale = scale >= std::numeric_limits<float>::min() ? scale : 1.0F;
    params.scales[block] = scale;
    for_each(
        [&](std::int64_t at) { params.e4m3[at] = to_e4m3(params.values[at].to_float() / scale); });
  }
}

}  // namespace fastfd::kernels
