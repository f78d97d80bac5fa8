#pragma once

#include <array>
#include <atomic>

#include "fastfd/core/server_loop.h"

namespace fastfd {

/// Where each lane stands: written by one loop thread, read by any. Relaxed: it is a report, nobody
/// orders other memory by it.
class LaneProgressBoard {
 public:
  void reset() {
    for (auto& lane : lanes_) {
      lane.store(0, std::memory_order_relaxed);
    }
  }

  void set(LaneId lane, const LaneProgress& progress) {
    lanes_[lane].store(progress.step << kStepShift |
                           static_cast<std::uint64_t>(progress.layer) << 1U |
                           (progress.waiting ? 1U : 0U),
                       std::memory_order_relaxed);
  }

  ServerProgress read() const {
    ServerProgress progress;
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      const std::uint64_t word = lanes_[lane].load(std::memory_order_relaxed);
      progress[lane] = {.step = word >> kStepShift,
                        .layer = static_cast<std::uint32_t>(word >> 1U & kLayerMask),
                        .waiting = (word & 1U) != 0};
    }
    return progress;
  }

 private:
  static constexpr std::uint64_t kStepShift = 16;
  static constexpr std::uint64_t kLayerMask = 0x7fff;
  std::array<std::atomic<std::uint64_t>, kMaxLanes> lanes_{};
};

}  // namespace fastfd
