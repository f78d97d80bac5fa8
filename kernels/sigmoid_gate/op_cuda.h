#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// y = y * sigmoid(gate), element by element: the output gate of an attention layer.
struct SigmoidGateParams {
  std::int64_t max_rows = 0;  ///< the bucket
  std::int64_t dim = 0;       ///< a multiple of 8
  const layout::LaneControl* control = nullptr;
  const bf16* gate = nullptr;  ///< [max_rows, dim], 16-byte aligned
  bf16* y = nullptr;           ///< [max_rows, dim], 16-byte aligned
};
/// Leaves rows beyond the lane's alone. kInvalidArgument for another dim.
Status launch_sigmoid_gate(const SigmoidGateParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
