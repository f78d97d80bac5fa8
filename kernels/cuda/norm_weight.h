#pragma once

#include "fastfd/core/dtype.h"

namespace fastfd::kernels::cuda {

/// RMSNorm inside a fused kernel: y = x / sqrt(mean(x^2) + eps) * weight.
struct NormWeight {
  const void* values = nullptr;    ///< [hidden_dim] of dtype, device memory, 16-byte aligned
  DType dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat32
  float eps = 1e-6F;
};

}  // namespace fastfd::kernels::cuda
