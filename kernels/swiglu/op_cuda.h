#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// Between the two products of a shared expert: hidden = weight * silu(gate) * up, where a row's
/// weight is 1 or the sigmoid of a projection of what the expert reads (the product behind it is
/// linear, so the weight may stand in front of it). Device pointers, aligned to 16 bytes.
struct SwigluParams {
  std::int64_t max_rows = 0;  ///< the bucket
  const layout::LaneControl* control = nullptr;
  std::int64_t intermediate_dim = 0;  ///< a multiple of 8
  const bf16* gate_up = nullptr;      ///< [max_rows, 2 * intermediate_dim]: gates, then ups
  bf16* hidden = nullptr;             ///< [max_rows, intermediate_dim]
  // The weight; all nullptr or 0: 1.
  std::int64_t input_dim = 0;            ///< a multiple of 8
  const bf16* input = nullptr;           ///< [max_rows, input_dim]
  const bf16* weight_project = nullptr;  ///< [input_dim]
};
/// Writes rows 0 .. control->num_rows - 1. A row's bits depend on that row alone. kInvalidArgument:
/// a dimension that is not as above.
Status launch_swiglu(const SwigluParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
