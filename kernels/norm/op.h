#pragma once

#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
struct RmsNormParams {
  std::int64_t num_rows = 0;
  std::int64_t dim = 0;
  const float* x = nullptr;       ///< [num_rows, dim]
  const float* weight = nullptr;  ///< [dim]
  float* y = nullptr;             ///< [num_rows, dim]; may be x
  float eps = 1e-6F;
};
Status launch_rms_norm(const RmsNormParams& params, const device::CpuStream& stream);
void reference_rms_norm(const RmsNormParams& params);

/// The receive half of N2M combine: residual[row] += sum over FFN ranks, ascending, of that rank's
/// partial for the row (a rank without one is skipped), then y = rms_norm(residual).
struct CombineNormParams {
  std::int64_t num_rows = 0;
  std::int64_t dim = 0;
  float* residual = nullptr;  ///< [num_rows, dim], updated
  std::int64_t num_ranks = 0;
  /// [num_ranks * num_rows], rank-major: row of that rank's combine window or nullptr.
  const void* const* partials = nullptr;
  DType partial_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16
  const float* weight = nullptr;          ///< [dim]; nullptr: no norm, y is not written
  float* y = nullptr;                     ///< [num_rows, dim]
  float eps = 1e-6F;
};
Status launch_combine_norm(const CombineNormParams& params, const device::CpuStream& stream);
void reference_combine_norm(const CombineNormParams& params);

}  // namespace fastfd::kernels
