#pragma once

/// The one place that launches kernels and reads CUDA's error codes. Without fmt, whose headers
/// nvcc can't compile as C++20.

#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <utility>

#include "fastfd/core/status.h"
#include "kernels/cuda/footprint_recorder.h"

namespace fastfd::kernels::cuda {

/// `what` is the call that failed, as a person would name it.
inline Status check_cuda(cudaError_t error, const char* what,
                         const std::source_location& where = std::source_location::current()) {
  if (error == cudaSuccess) {
    return Status::ok();
  }
  return {StatusCode::kInternal, std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                                     cudaGetErrorName(error) + ") at " + where.file_name() + ":" +
                                     std::to_string(where.line())};
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< dynamic
  /// Programmatic dependent launch: the kernel may start before its predecessor in the stream has
  /// ended and waits with cudaGridDependencySynchronize() before it reads what that one wrote.
  bool overlaps_predecessor = false;
  unsigned cluster_blocks = 1;  ///< consecutive blocks (of x) that run together and share memory
  bool waits = false;           ///< spins until somebody else has done something
};

/// Tells the thread's FootprintRecorder, if there is one.
inline Status record_launch(const void* kernel, const LaunchShape& shape, const char* name) {
  FootprintRecorder* recorder = FootprintRecorder::current();
  if (recorder == nullptr) {
    return Status::ok();
  }
  cudaFuncAttributes attributes{};
  Status status = check_cuda(cudaFuncGetAttributes(&attributes, kernel), name);
  if (status) {
    recorder->add({.kernel = name,
                   .num_threads = shape.block.x * shape.block.y * shape.block.z,
                   .registers_per_thread = static_cast<std::uint32_t>(attributes.numRegs),
                   .shared_bytes = attributes.sharedSizeBytes + shape.shared_bytes,
                   .cluster_size = shape.cluster_blocks},
                  shape.waits);
  }
  return status;
}

/// Enqueues `kernel`; a grid without blocks is a launch of nothing. A kernel that needs more than
/// 48 KiB of dynamic shared memory must have been given to allow_shared_bytes once.
template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
              const char* name, Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) {
    return Status::ok();
  }
  if (Status status = record_launch(reinterpret_cast<const void*>(kernel), shape, name); !status) {
    return status;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.overlaps_predecessor) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster_blocks > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster_blocks, 1, 1};
  }
  return check_cuda(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), name);
}

/// Raises a kernel's limit of dynamic shared memory: once, before its first launch or capture.
template <typename... Params>
Status allow_shared_bytes(void (*kernel)(Params...), std::size_t shared_bytes, const char* name) {
  return check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)),
                    name);
}

}  // namespace fastfd::kernels::cuda
