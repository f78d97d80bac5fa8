#pragma once

/// The probe kernels as one process runs them: one at a time, on a stream of its own.

#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"
#include "kernels/layout/lane_control.h"
#include "tests/gpu/probe_kernels.h"

namespace fastfd::testing {

/// A flag and words in a window, written by one process and read by another.
struct ProbeChannel {
  std::uint64_t* flag = nullptr;     ///< [1]
  std::uint32_t* payload = nullptr;  ///< [num_words]
  std::uint32_t num_words = 0;
};

class Probe {
 public:
  /// Throws DeviceError.
  explicit Probe(const device::CudaDevice& gpu);

  /// Writes the words of `seed`, then raises the flag. Blocks until both are done.
  Status post(const ProbeChannel& channel, std::uint32_t seed, std::uint64_t value);
  /// Waits for the flag; words that are not those of `seed`, num_words + 1 if the flag didn't come.
  Result<std::uint32_t> receive(const ProbeChannel& channel, std::uint32_t seed,
                                std::uint64_t value);
  /// Starts a wait for a flag that nobody raises. Returns once it runs.
  Status spin(const std::uint64_t* flag);
  /// Ends that wait through the abort word. Returns once the GPU is idle.
  Status end_spin();

  WaitLimits limits() const;
  std::uint64_t* elapsed_ns() const { return words_.as<std::uint64_t>() + 64; }
  const device::DeviceStream& stream() const { return stream_; }

 private:
  std::uint32_t* started() const { return words_.as<std::uint32_t>(); }
  std::uint32_t* abort_word() const { return words_.as<std::uint32_t>() + 32; }
  std::uint32_t* num_wrong() const { return words_.as<std::uint32_t>() + 64; }
  Status clear_state();

  device::DeviceStream stream_;
  device::DeviceBuffer state_;
  device::PinnedBuffer words_;
};

}  // namespace fastfd::testing
