#pragma once

/// Which kernels a server launches, and what each takes of an SM: collected while a step is
/// captured at start-up, so that no list of kernels can be out of date.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fastfd/core/status.h"
#include "kernels/cuda/residency.h"

namespace fastfd::kernels::cuda {

struct RecordedKernel {
  std::string name;
  KernelFootprint footprint;
  bool waits = false;  ///< the one that spins (launch_wait)
};

/// While it lives, every kernel that this thread launches is recorded. One at a time a thread.
class FootprintRecorder {
 public:
  FootprintRecorder();
  ~FootprintRecorder();
  FootprintRecorder(const FootprintRecorder&) = delete;
  FootprintRecorder& operator=(const FootprintRecorder&) = delete;

  /// Each different footprint once, in the order of their first launches.
  const std::vector<RecordedKernel>& kernels() const { return kernels_; }

  /// For the launch helper: nullptr if nobody records on this thread.
  static FootprintRecorder* current();
  void add(RecordedKernel kernel);

 private:
  std::vector<RecordedKernel> kernels_;
};

/// OK if `num_waiting` blocks of the waiting kernel, wherever they lie on the `num_sms` SMs, leave
/// room for a block or cluster of each working one (PROTOCOL 5). Else kResourceExhausted with the
/// arithmetic. Needs a device.
Status check_residency(const std::vector<RecordedKernel>& kernels, std::uint32_t num_waiting,
                       std::uint32_t num_sms);

}  // namespace fastfd::kernels::cuda
