#pragma once

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/quantize/op.h"

namespace fastfd::kernels::cuda {

/// All pointers are device memory, `values` and `e4m3` aligned to 16 bytes. kInvalidArgument for a
/// dimension that is no positive multiple of 128.
Status launch_quantize(const QuantizeParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
