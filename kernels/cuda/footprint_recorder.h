#pragma once

/// Which kernels a server launches, and what each takes of an SM: collected while a step is
/// captured at start-up, so that no list of kernels can be out of date.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/core/status.h"
#include "kernels/cuda/residency.h"

namespace fastfd::kernels::cuda {

struct RecordedKernel {
  std::string name;
  KernelFootprint footprint;
  bool waits = false;  ///< the one that spins (launch_wait)
  friend bool operator==(const RecordedKernel&, const RecordedKernel&) = default;
};

/// While it lives, every kernel that this thread launches is recorded. One at a time a thread.
class FootprintRecorder {
 public:
  FootprintRecorder() { current_ = this; }
  ~FootprintRecorder() { current_ = nullptr; }
  FootprintRecorder(const FootprintRecorder&) = delete;
  FootprintRecorder& operator=(const FootprintRecorder&) = delete;

  /// Each different footprint once, in the order of their first launches.
  const std::vector<RecordedKernel>& kernels() const { return kernels_; }

  /// For the launch helper: nullptr if nobody records on this thread.
  static FootprintRecorder* current() { return current_; }
  void add(RecordedKernel kernel) {
    for (const RecordedKernel& other : kernels_) {
      if (other == kernel) {
        return;
      }
    }
    kernels_.push_back(std::move(kernel));
  }

 private:
  // In the header, so that programs with kernels of their own need no library for the helper.
  inline static thread_local FootprintRecorder* current_ = nullptr;
  std::vector<RecordedKernel> kernels_;
};

/// OK if `num_waiting` blocks of the waiting kernel, wherever they lie on the `num_sms` SMs, leave
/// room for a block or cluster of each working one (PROTOCOL 5). Else kResourceExhausted with the
/// arithmetic. Needs a device.
Status check_residency(const std::vector<RecordedKernel>& kernels, std::uint32_t num_waiting,
                       std::uint32_t num_sms);

}  // namespace fastfd::kernels::cuda
