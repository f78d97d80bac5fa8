#pragma once

/// Inputs and output of the benchmarks of attention's side.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "fastfd/core/dtype.h"
#include "timing.cuh"

namespace fastfd::bench {

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    require(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  T* data() { return data_; }

  /// Fills it with copies of `block`.
  void repeat(const std::vector<T>& block) {
    for (std::size_t at = 0; at < count_; at += block.size()) {
      const std::size_t part = std::min(block.size(), count_ - at);
      require(cudaMemcpy(data_ + at, block.data(), part * sizeof(T), cudaMemcpyHostToDevice),
              "copy");
    }
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

inline std::vector<float> normals(std::size_t count, float scale) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(engine);
  }
  return values;
}

inline std::vector<bf16> bf16_normals(std::size_t count, float scale = 1.0F) {
  std::vector<bf16> values;
  for (const float value : normals(count, scale)) {
    values.push_back(bf16::from_float(value));
  }
  return values;
}

inline void print(const std::string& what, double microseconds, double floor) {
  std::printf("%-58s %9.1f us   floor %8.1f us   ratio %5.2f\n", what.c_str(), microseconds, floor,
              microseconds / floor);
  std::fflush(stdout);
}

}  // namespace fastfd::bench
