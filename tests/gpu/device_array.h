#pragma once

/// Device memory for tests of kernels: filled with a pattern first, so that an element nobody wrote
/// shows.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace fastfd::testing {

inline void require_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// [num_elements] of T on the current device.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t num_elements) : num_elements_(num_elements) {
    require_cuda(cudaMalloc(&data_, num_bytes() == 0 ? 1 : num_bytes()), "cudaMalloc");
    require_cuda(cudaMemset(data_, 0xff, num_bytes()), "cudaMemset");  // NaN as a float
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { put(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return num_elements_; }
  std::size_t num_bytes() const { return num_elements_ * sizeof(T); }

  void put(const std::vector<T>& values) {
    require_cuda(cudaMemcpy(data_, values.data(), num_bytes(), cudaMemcpyHostToDevice), "copy in");
  }
  /// Waits for the device first.
  std::vector<T> get() const {
    require_cuda(cudaDeviceSynchronize(), "kernel");
    std::vector<T> values(num_elements_);
    require_cuda(cudaMemcpy(values.data(), data_, num_bytes(), cudaMemcpyDeviceToHost), "copy out");
    return values;
  }

 private:
  std::size_t num_elements_;
  T* data_ = nullptr;
};

/// ||actual - expected|| / ||expected||; NaN if anything is.
inline double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) {
    throw std::invalid_argument("relative_error of unequal lengths");
  }
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double off = static_cast<double>(actual[i]) - expected[i];
    difference += off * off;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

}  // namespace fastfd::testing
