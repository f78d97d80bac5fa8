#pragma once

/// Times launches on the device: a graph of them is replayed, so that host time and launch gaps
/// stay out, and the median of the replays counts.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "fastfd/core/status.h"

namespace fastfd::bench {

// An H200's measured ceilings: copies, and large matrix products on random data.
inline constexpr double kBytesPerSecond = 4.3e12;
inline constexpr double kBf16FlopsPerSecond = 7.9e14;
inline constexpr double kFp8FlopsPerSecond = 1.5e15;

inline void require(const Status& status) {
  if (!status.is_ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::exit(1);
  }
}

inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

/// Microseconds that one call of `enqueue(i, stream)` takes on the device, for i = 0 ..
/// calls_per_graph - 1: let i choose among inputs that together don't fit the cache.
inline double median_microseconds(int calls_per_graph,
                                  const std::function<void(int, cudaStream_t)>& enqueue) {
  constexpr int kWarmUps = 3;
  constexpr int kReplays = 15;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  require(cudaEventCreate(&begin), "event");
  require(cudaEventCreate(&end), "event");
  require(cudaDeviceSynchronize(), "inputs");
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < calls_per_graph; ++i) {
    enqueue(i, stream);
  }
  require(cudaStreamEndCapture(stream, &graph), "capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    float milliseconds = 0.0F;
    require(cudaEventRecord(begin, stream), "event");
    require(cudaGraphLaunch(executable, stream), "replay");
    require(cudaEventRecord(end, stream), "event");
    require(cudaEventSynchronize(end), "replay");
    require(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (i >= kWarmUps) {
      times.push_back(1e3 * milliseconds / calls_per_graph);
    }
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[kReplays / 2];
}

/// The time that no version can beat: moving the bytes or doing the arithmetic.
inline double floor_microseconds(double num_bytes, double flops, double flops_per_second) {
  return 1e6 * std::max(num_bytes / kBytesPerSecond, flops / flops_per_second);
}

}  // namespace fastfd::bench
