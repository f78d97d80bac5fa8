#pragma once

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/random_fill/op.h"

namespace fastfd::kernels::cuda {

/// params.out is device memory aligned to 16 bytes; kInvalidArgument if it is not.
Status launch_random_fill(const RandomFillParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
