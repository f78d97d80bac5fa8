#pragma once

/// The order of tokens, sums over sets of them, and the sampler's random numbers.

#include <cstdint>

namespace fastfd::kernels::cuda {

/// Maps floats to integers of the same order; both zeros are equal.
__device__ __forceinline__ std::uint32_t order_key(float x) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0F));
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// Larger is likelier: by logit, then by the lower id.
__device__ __forceinline__ std::uint64_t rank_of(float logit, std::uint32_t token) {
  return (std::uint64_t{order_key(logit)} << 32) | ~token;
}

/// How many tokens, and their weights in units of 2^-40 of the likeliest one's.
struct Mass {
  std::uint64_t weight = 0;
  std::uint32_t count = 0;

  __device__ Mass operator+(const Mass& other) const {
    return {weight + other.weight, count + other.count};
  }
};

/// First 32 of the 128 bits of Philox-4x32-10 for counter (position, 0, 0, 0);
/// kernels/sampling/op.h.
__device__ inline std::uint32_t philox_word(std::uint64_t seed, std::uint32_t position) {
  std::uint32_t counter[4] = {position, 0, 0, 0};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, counter[0]);
    const std::uint32_t low0 = 0xD2511F53U * counter[0];
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, counter[2]);
    const std::uint32_t low1 = 0xCD9E8D57U * counter[2];
    counter[0] = high1 ^ counter[1] ^ key[0];
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ key[1];
    counter[3] = low0;
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter[0];
}

}  // namespace fastfd::kernels::cuda
