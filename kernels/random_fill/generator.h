#pragma once

/// Random weights as a function of (key, index): host and device give the same bits, whatever the
/// order, so that a GPU and a CPU hold one model without a file between them.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "kernels/layout/host_device.h"

namespace fastfd::kernels {

/// splitmix64 as a counter-based generator: Steele, Lea, Flood, "Fast splittable pseudorandom
/// number generators", 2014.
FASTFD_HOST_DEVICE constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t index) {
  std::uint64_t x = key + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Standard deviation of random_normal_steps.
inline constexpr float kRandomNormalSteps = 37837.22F;

/// Nearly normal with mean 0 and standard deviation kRandomNormalSteps, within 3.47 of those: the
/// sum of four uniform 16-bit numbers. An integer below 2^18, so that no library's logarithm or
/// cosine decides a bit.
FASTFD_HOST_DEVICE constexpr std::int32_t random_normal_steps(std::uint64_t key,
                                                              std::uint64_t index) {
  const std::uint64_t bits = random_bits(key, index);
  const auto sum = static_cast<std::int32_t>((bits & 0xffffU) + ((bits >> 16) & 0xffffU) +
                                             ((bits >> 32) & 0xffffU) + (bits >> 48));
  return sum - 2 * 0xffff;
}

/// `step` is the wanted standard deviation / kRandomNormalSteps. One multiplication: nothing that a
/// compiler may fuse.
FASTFD_HOST_DEVICE constexpr bf16 random_normal(std::uint64_t key, std::uint64_t index,
                                                float step) {
  return bf16::from_float(static_cast<float>(random_normal_steps(key, index)) * step);
}

}  // namespace fastfd::kernels
