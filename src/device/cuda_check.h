#pragma once

/// CUDA's error codes as FastFD's errors.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {

/// `what` is the call that failed, as a person would name it. kResourceExhausted for lack of
/// memory, else kInternal.
Status to_status(cudaError_t error, const char* what);
Status to_status(CUresult result, const char* what);

/// Throws DeviceError unless the call went well.
void require(cudaError_t error, const char* what);
void require(CUresult result, const char* what);

/// CUDA's number for a priority: lower goes first. Throws DeviceError.
int cuda_priority(StreamPriority priority);

}  // namespace fastfd::device
