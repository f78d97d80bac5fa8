#pragma once

/// Descriptors for the bulk tensor copy engine, made on the host. They hold plain addresses, so a
/// launcher makes one for each launch (well under a microsecond) and passes it as a
/// __grid_constant__ parameter, which a captured graph keeps.

#include <cuda.h>

#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"

namespace fastfd::kernels::cuda {

inline constexpr std::size_t kMaxTensorMapDims = 5;

struct TensorMapDim {
  std::int64_t extent = 1;
  std::int64_t stride_bytes = 0;  ///< multiple of 16; unused in the first dimension: contiguous
  int box = 1;                    ///< elements a copy brings, at most 256
};

/// A map whose copies arrive in the 128-byte swizzle, so the box of the first dimension is 128
/// bytes. `dims`: fastest first, at most kMaxTensorMapDims. Elements outside an extent arrive as
/// zeros. kInvalidArgument if the driver refuses: most likely `base` is not aligned to 16 bytes.
Status make_tensor_map(CUtensorMap* map, DType dtype, const void* base,
                       std::span<const TensorMapDim> dims);

}  // namespace fastfd::kernels::cuda
