#pragma once

/// Arrival flags. A flag has one writer, only grows, and carries the epoch, so nothing written
/// under one epoch is taken for data of the next (PROTOCOL 3 and 4).

#include <cstdint>

#include "kernels/layout/host_device.h"

namespace fastfd::layout {

inline constexpr std::uint32_t kSequenceBits = 48;
inline constexpr std::uint64_t kSequenceMask = (std::uint64_t{1} << kSequenceBits) - 1;

/// Value of a flag that was never raised. No hop packs to it: sequences start at 1.
inline constexpr std::uint64_t kNoFlag = 0;

/// Place of a hop in the life of its lane, from 1. 48 bits last 89 years at 100,000 layers/s.
FASTFD_HOST_DEVICE constexpr std::uint64_t hop_sequence(std::uint64_t step,
                                                        std::uint32_t num_layers,
                                                        std::uint32_t layer) {
  return step * num_layers + layer + 1;
}

/// Upper 16 bits: the epoch's low 16 bits. Lower 48 bits: the sequence.
FASTFD_HOST_DEVICE constexpr std::uint64_t pack_flag(std::uint32_t epoch, std::uint64_t sequence) {
  return (static_cast<std::uint64_t>(epoch & 0xffffU) << kSequenceBits) |
         (sequence & kSequenceMask);
}

FASTFD_HOST_DEVICE constexpr std::uint32_t flag_epoch(std::uint64_t flag) {
  return static_cast<std::uint32_t>(flag >> kSequenceBits);
}

FASTFD_HOST_DEVICE constexpr std::uint64_t flag_sequence(std::uint64_t flag) {
  return flag & kSequenceMask;
}

/// True if a writer that last raised `current` may raise `next`. Compared as serial numbers
/// (RFC 1982), so that epoch 65536 still follows 65535.
FASTFD_HOST_DEVICE constexpr bool flag_advances(std::uint64_t current, std::uint64_t next) {
  const std::uint64_t distance = next - current;
  return current == kNoFlag || (distance != 0 && distance < (std::uint64_t{1} << 63));
}

}  // namespace fastfd::layout
