#pragma once

#include <cstdint>
#include <span>

#include "fastfd/core/interval_union.h"
#include "kernels/layout/hop_times.h"

namespace fastfd::kernels {

/// How long a server's GPU worked and how long it stood still, by the times that the waits of its
/// lanes report. What lanes do at once counts once: the server stands still when every lane that
/// has a step waits for the other pool. Launch gaps inside a lane count as work. Not thread-safe.
class WorkClock {
 public:
  /// A step of one lane, within ten seconds of its end: `waits` of its layers, ascending, all
  /// inside of `step`.
  void add(std::span<const layout::HopTimes> waits, const layout::HopTimes& step);

  std::uint64_t busy_ns() const { return working_.covered(); }
  std::uint64_t waiting_ns() const { return planned_.covered() - working_.covered(); }

 private:
  static constexpr std::uint64_t kHorizonNs = 10'000'000'000ULL;
  IntervalUnion planned_{kHorizonNs};
  IntervalUnion working_{kHorizonNs};
};

}  // namespace fastfd::kernels
