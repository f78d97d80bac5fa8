#pragma once

/// The order of tokens, sums over sets of them, and the sampler's random numbers.

#include <cstdint>

namespace fastfd::kernels::cuda {

/// Maps floats to integers of the same order; both zeros are equal.
__device__ __forceinline__ std::uint32_t order_key(float x) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0F));
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// The float that has this key.
__device__ __forceinline__ float value_of_key(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

/// Larger is likelier: by logit, then by the lower id.
__device__ __forceinline__ std::uint64_t rank_of(float logit, std::uint32_t token) {
  return (std::uint64_t{order_key(logit)} << 32) | ~token;
}

/// The least likely token of a set of likeliest ones. By default everything is in.
struct Cut {
  float logit = -__builtin_inff();
  std::uint32_t token = 0xffffffffU;

  /// Whether a token is in.
  __device__ __forceinline__ bool keeps(std::uint32_t other, float other_logit) const {
    return other_logit > logit || (other_logit == logit && other <= token);
  }
};

/// How many tokens, and their weights in units of 2^-40 of the likeliest one's.
struct Mass {
  std::uint64_t weight = 0;
  std::uint32_t count = 0;

  __device__ Mass operator+(const Mass& other) const {
    return {weight + other.weight, count + other.count};
  }
};

/// exp((logit - largest) / temperature) as an integer, so that sums have no order.
struct Weigher {
  float largest = 0.0F;
  float scale = 0.0F;  ///< log2(e) / temperature, as two floats
  float scale_low = 0.0F;

  __device__ static Weigher of(float temperature, float largest) {
    constexpr double kLog2E = 1.4426950408889634;
    const double scale = fmin(kLog2E / static_cast<double>(temperature), 3.0e38);
    const auto high = static_cast<float>(scale);
    return {largest, high, static_cast<float>(scale - static_cast<double>(high))};
  }

  __device__ __forceinline__ std::uint64_t operator()(float logit) const {
    constexpr float kUnits = 1099511627776.0F;  // 2^40
    const float difference = __fsub_rn(logit, largest);
    const float exponent = __fmul_rn(difference, scale);
    if (!(exponent > -41.0F)) {
      return 0;
    }
    // The product's rounding error would be a relative error of the weight.
    const float error = __fmaf_rn(difference, scale_low, __fmaf_rn(difference, scale, -exponent));
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(exponent));
    weight = __fmul_rn(weight, kUnits);
    return static_cast<std::uint64_t>(__fmaf_rn(weight, error * 0.6931471805599453F, weight));
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
