#include <algorithm>
#include <bit>

#include "kernels/quantize/op.h"

namespace fastfd::kernels {
namespace {

/// e4m3's exponent and mantissa, moved to where a float has them, mean the value times 2^-120: the
/// biases are 7 and 127. Exact, subnormals included, and nothing but integer and float arithmetic
/// that compilers vectorise.
float decode(std::uint8_t bits) {
  const std::uint32_t sign = (bits & 0x80U) << 24;
  const std::uint32_t magnitude = (bits & 0x7fU) << 20;
  return std::bit_cast<float>(sign | magnitude) * 0x1p120F;
}

void store(float value, float& out) { out = value; }
void store(float value, bf16& out) { out = bf16::from_float(value); }

template <typename T>
void dequantize_as(const DequantizeParams& params, T* out) {
  const std::int64_t block_cols = (params.cols + kQuantizeBlock - 1) / kQuantizeBlock;
  for (std::int64_t done = 0; done < params.count;) {
    // As much as shares a scale: the rest of a block's row.
    const std::int64_t row = (params.first + done) / params.cols;
    const std::int64_t col = (params.first + done) % params.cols;
    const std::int64_t block_end =
        std::min((col / kQuantizeBlock + 1) * kQuantizeBlock, params.cols);
    const std::int64_t now = std::min(block_end - col, params.count - done);
    const float scale = params.scales[row / kQuantizeBlock * block_cols + col / kQuantizeBlock];
    for (std::int64_t i = done; i < done + now; ++i) {
      store(decode(params.e4m3[i]) * scale, out[i]);
    }
    done += now;
  }
}

}  // namespace

void dequantize(const DequantizeParams& params, float* out) { dequantize_as(params, out); }
void dequantize(const DequantizeParams& params, bf16* out) { dequantize_as(params, out); }

std::int64_t find_nan_e4m3(const std::uint8_t* e4m3, std::int64_t count) {
  constexpr std::int64_t kChunk = 4096;
  const auto is_nan = [](std::uint8_t bits) { return (bits & 0x7f) == 0x7f; };
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t end = std::min(begin + kChunk, count);
    // No early exit, so that it is vectorised.
    std::uint8_t any = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      any |= static_cast<std::uint8_t>(is_nan(e4m3[i]));
    }
    if (any != 0) {
      return std::find_if(e4m3 + begin, e4m3 + end, is_nan) - e4m3;
    }
  }
  return count;
}

}  // namespace fastfd::kernels
