#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// y = x / sqrt(mean(x^2) + eps) * weight, row by row, from the float residual to a GEMM's input.
struct RmsNormParams {
  std::int64_t max_rows = 0;  ///< the bucket: rows of x, or samples
  std::int64_t dim = 0;       ///< a multiple of 4
  const layout::LaneControl* control = nullptr;
  /// nullptr: row i of y comes from row i of x, for control->num_rows rows. Else from row
  /// samples[i].row, for control->num_samples rows: the LM head's input.
  const layout::LaneSample* samples = nullptr;  ///< [max_rows]
  const float* x = nullptr;                     ///< [rows, dim]
  const float* weight = nullptr;                ///< [dim]
  bf16* y = nullptr;                            ///< [max_rows, dim]
  float eps = 1e-6F;
};
/// kInvalidArgument for a dim that is no multiple of 4. A row's result depends on that row only.
Status launch_rms_norm(const RmsNormParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
