#pragma once

/// What a lane's waiting kernels tell the host of themselves: how far they are, and when they
/// stood still.

#include <cstdint>

#include "kernels/layout/host_device.h"

namespace fastfd::layout {

/// In nanoseconds of the GPU's clock: of a wait, or of a whole step.
struct alignas(16) HopTimes {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
};

/// Where a lane stands, in one word, so that the host never reads half of it. 0: nowhere yet.
struct HopProgress {
  std::uint64_t step = 0;   ///< below 2^48
  std::uint32_t layer = 0;  ///< below 2^15
  bool waiting = false;

  FASTFD_HOST_DEVICE constexpr std::uint64_t pack() const {
    return step << 16U | static_cast<std::uint64_t>(layer) << 1U | (waiting ? 1U : 0U);
  }
  FASTFD_HOST_DEVICE static constexpr HopProgress unpack(std::uint64_t word) {
    return {word >> 16U, static_cast<std::uint32_t>(word >> 1U & 0x7fffU), (word & 1U) != 0};
  }
};

}  // namespace fastfd::layout
