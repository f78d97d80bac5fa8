#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"

namespace fastfd::kernels {

inline constexpr std::int64_t kQuantizeBlock = 128;  ///< rows and columns that share a scale

/// bf16 -> float8_e4m3 with a float scale a block of 128 x 128, as ExpertWeights of
/// kernels/expert_ffn/op_cuda.h wants it: value = scale * e4m3, rounded to nearest even. A block's
/// scale is its largest magnitude / 448, so that it becomes the largest finite e4m3 value; blocks
/// of zeros, or of values whose scale would not be a normal float, become zeros with scale 1.
/// Values must be finite.
struct QuantizeParams {
  std::int64_t rows = 0;         ///< multiple of 128
  std::int64_t cols = 0;         ///< multiple of 128
  const bf16* values = nullptr;  ///< [rows, cols]
  std::uint8_t* e4m3 = nullptr;  ///< out [rows, cols]
  float* scales = nullptr;       ///< out [rows / 128, cols / 128]
};

/// One value, saturating: nearest, ties to even.
std::uint8_t to_e4m3(float value);
float from_e4m3(std::uint8_t bits);

/// The same bits as cuda::launch_quantize. Never optimised.
void reference_quantize(const QuantizeParams& params);

/// Part of a matrix [rows, cols] of float8_e4m3 with a float scale a block of 128 x 128, the last
/// ones of a row or column smaller: elements first .. first + count - 1 in row-major order.
struct DequantizeParams {
  std::int64_t cols = 0;
  std::int64_t first = 0;  ///< counted from the row that scales[0] begins with
  std::int64_t count = 0;
  const std::uint8_t* e4m3 = nullptr;  ///< [count]
  const float* scales = nullptr;       ///< [..., ceil(cols / 128)], as many rows as needed
};

/// out [count] = scale * e4m3: a float product, rounded again (nearest, ties to even) for bf16, as
/// transformers does it (Fp8Dequantize). NaN bytes (0x7f, 0xff) become large finite values: look
/// for them with find_nan_e4m3 first.
void dequantize(const DequantizeParams& params, float* out);
void dequantize(const DequantizeParams& params, bf16* out);

/// Position of the first NaN, `count` if there is none.
std::int64_t find_nan_e4m3(const std::uint8_t* e4m3, std::int64_t count);

}  // namespace fastfd::kernels
