#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fastfd {

/// Element types of weights, activations and wire payloads.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3 };

/// Bytes of one element.
constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat8E4M3:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", ...
const char* to_string(DType dtype);

/// How CPU kernels treat activations (weights are bf16 and sums are float in both).
enum class Precision : std::uint8_t {
  kFloat32,   ///< activations stay float: the numerical reference
  kBFloat16,  ///< activations are rounded to bf16 where a GEMM reads them
};

const char* to_string(Precision precision);

/// The upper half of an IEEE float. Trivially copyable, layout of the checkpoint files.
struct bf16 {
  std::uint16_t bits;

  /// Rounds to nearest, ties to even; NaN stays NaN.
  static constexpr bf16 from_float(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
    }
    return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
  }
  constexpr float to_float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(bf16 a, bf16 b) { return a.bits == b.bits; }
};
static_assert(sizeof(bf16) == 2);

}  // namespace fastfd
