#pragma once

/// Which kernels a server launches, and what each takes of an SM: collected while a step is
/// captured at start-up, so that no list of kernels can be out of date. Header-only: programs with
/// kernels of their own need no library for the launch helper.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/device/sm_partition.h"

namespace fastfd::kernels::cuda {

/// While it lives, every kernel that this thread launches is recorded. One at a time a thread.
class FootprintRecorder {
 public:
  FootprintRecorder() { current_ = this; }
  ~FootprintRecorder() { current_ = nullptr; }
  FootprintRecorder(const FootprintRecorder&) = delete;
  FootprintRecorder& operator=(const FootprintRecorder&) = delete;

  /// Each different footprint once: kernels that spin, and the others.
  const std::vector<device::CtaFootprint>& waiting() const { return waiting_; }
  const std::vector<device::CtaFootprint>& working() const { return working_; }

  /// device::check_residency of what was recorded, with `num_waiting` blocks that may wait at once.
  Status check_residency(const device::SmLimits& sm, std::uint32_t num_sms,
                         std::uint32_t num_waiting) const {
    std::vector<device::WaitingCtas> waiting;
    for (const device::CtaFootprint& footprint : waiting_) {
      waiting.push_back({footprint, num_waiting});
    }
    return device::check_residency(sm, num_sms, waiting, working_);
  }

  /// For the launch helper: nullptr if nobody records on this thread.
  static FootprintRecorder* current() { return current_; }
  void add(device::CtaFootprint footprint, bool waits) {
    auto& kernels = waits ? waiting_ : working_;
    if (std::find(kernels.begin(), kernels.end(), footprint) == kernels.end()) {
      kernels.push_back(std::move(footprint));
    }
  }

 private:
  inline static thread_local FootprintRecorder* current_ = nullptr;
  std::vector<device::CtaFootprint> waiting_;
  std::vector<device::CtaFootprint> working_;
};

}  // namespace fastfd::kernels::cuda
