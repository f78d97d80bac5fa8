#pragma once

/// One row of a payload as it lies in a window. Both sides and every kernel that reads rows in
/// place address it by this.
///
///   float32, bfloat16: | hidden_dim values |
///   float8_e4m3:       | hidden_dim values | one float scale per 128 values | padding to 128 bytes
///   |
///
/// A value is scale * e4m3. The scale of a group is its largest magnitude / 448, so that it becomes
/// the largest finite e4m3 value; a group of zeros has scale 1.

#include <cstddef>
#include <cstdint>

#include "fastfd/core/dtype.h"
#include "kernels/layout/host_device.h"
#include "kernels/layout/window.h"

namespace fastfd::layout {

inline constexpr std::uint32_t kScaleGroup = 128;  ///< values that share a scale
inline constexpr float kLargestE4M3 = 448.0F;

struct RowLayout {
  std::uint32_t hidden_dim = 0;  ///< float8_e4m3: a multiple of kScaleGroup
  DType dtype = DType::kBFloat16;

  FASTFD_HOST_DEVICE constexpr std::size_t values_bytes() const {
    const std::size_t value_bytes = dtype == DType::kFloat32      ? 4
                                    : dtype == DType::kFloat8E4M3 ? 1
                                                                  : 2;
    return hidden_dim * value_bytes;
  }
  FASTFD_HOST_DEVICE constexpr std::uint32_t num_scales() const {
    return dtype == DType::kFloat8E4M3 ? hidden_dim / kScaleGroup : 0;
  }
  FASTFD_HOST_DEVICE constexpr std::size_t scales_offset() const { return values_bytes(); }
  /// What WindowDims::row_bytes must be. A multiple of 16 for every hidden_dim that is one of 8.
  FASTFD_HOST_DEVICE constexpr std::uint32_t row_bytes() const {
    const std::size_t used = values_bytes() + num_scales() * sizeof(float);
    return static_cast<std::uint32_t>(dtype == DType::kFloat8E4M3 ? align_payload(used) : used);
  }

  FASTFD_HOST_DEVICE std::byte* row(std::byte* rows, std::uint32_t index) const {
    return rows + static_cast<std::size_t>(index) * row_bytes();
  }
  FASTFD_HOST_DEVICE const std::byte* row(const std::byte* rows, std::uint32_t index) const {
    return rows + static_cast<std::size_t>(index) * row_bytes();
  }
  /// [num_scales()] of a row. float8_e4m3 only.
  FASTFD_HOST_DEVICE float* scales(std::byte* row) const {
    return reinterpret_cast<float*>(row + scales_offset());
  }
  FASTFD_HOST_DEVICE const float* scales(const std::byte* row) const {
    return reinterpret_cast<const float*>(row + scales_offset());
  }
};

}  // namespace fastfd::layout
