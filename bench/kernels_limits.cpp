#include "kernels_limits.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <map>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastfd::bench {
namespace {

/// Processor time of this thread, so that other programs on the machine do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr std::int64_t kIterations = 2'000'000;
constexpr int kChains = 16;  // enough independent sums to hide the latency of any multiply-add

#if defined(__x86_64__)
// The empty asm statements keep the sums in registers and the loops in the program.
#define FASTFD_KEEP(x) asm volatile("" : "+v"(x))

__attribute__((target("avx512f,avx512bf16"))) double bf16_flops() {
  __m512 sums[kChains] = {};
  __m512i ones = _mm512_set1_epi32(0x3f803f80);
  FASTFD_KEEP(ones);
  for (std::int64_t i = 0; i < kIterations; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, (__m512bh)ones, (__m512bh)ones);
      FASTFD_KEEP(sum);
    }
  }
  return 64.0 * kChains * kIterations;
}

__attribute__((target("avx512f"))) double avx512_flops() {
  __m512 sums[kChains] = {};
  __m512 ones = _mm512_set1_ps(1.0F);
  FASTFD_KEEP(ones);
  for (std::int64_t i = 0; i < kIterations; ++i) {
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(ones, ones, sum);
      FASTFD_KEEP(sum);
    }
  }
  return 32.0 * kChains * kIterations;
}

__attribute__((target("avx2,fma"))) double avx2_flops() {
  constexpr int kAvx2Chains = 12;
  __m256 sums[kAvx2Chains] = {};
  __m256 ones = _mm256_set1_ps(1.0F);
  asm volatile("" : "+x"(ones));
  for (std::int64_t i = 0; i < kIterations; ++i) {
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(ones, ones, sum);
      asm volatile("" : "+x"(sum));
    }
  }
  return 16.0 * kAvx2Chains * kIterations;
}
#undef FASTFD_KEEP
#endif

double scalar_flops() {
  using Vec = float __attribute__((vector_size(16)));
  constexpr int kScalarChains = 8;
  Vec sums[kScalarChains] = {};
  Vec ones = {1.0F, 1.0F, 1.0F, 1.0F};
#if defined(__x86_64__)
  asm volatile("" : "+x"(ones));
#endif
  for (std::int64_t i = 0; i < kIterations; ++i) {
    for (auto& sum : sums) {
      sum = sum + ones * ones;
#if defined(__x86_64__)
      asm volatile("" : "+x"(sum));
#endif
    }
  }
  volatile float sink = sums[0][0];
  static_cast<void>(sink);
  return 8.0 * kScalarChains * kIterations;
}

double run_flops(device::Isa isa, Precision precision) {
#if defined(__x86_64__)
  if (isa == device::Isa::kAvx512Bf16 && precision == Precision::kBFloat16) {
    return bf16_flops();
  }
  if (isa >= device::Isa::kAvx512) {
    return avx512_flops();
  }
  if (isa == device::Isa::kAvx2) {
    return avx2_flops();
  }
#endif
  static_cast<void>(isa);
  static_cast<void>(precision);
  return scalar_flops();
}

}  // namespace

double memory_read_bytes_per_second() {
  static const double rate = [] {
    device::HostBuffer buffer(std::size_t{256} << 20);
    std::memset(buffer.data(), 1, buffer.num_bytes());
    const auto* words = buffer.as<std::uint64_t>();
    const std::size_t num_words = buffer.num_bytes() / sizeof(std::uint64_t);
    double best = 0.0;
    for (int pass = 0; pass < 7; ++pass) {
      const double start = thread_seconds();
      std::array<std::uint64_t, 8> sums{};
      for (std::size_t i = 0; i < num_words; i += sums.size()) {
        for (std::size_t j = 0; j < sums.size(); ++j) {
          sums[j] += words[i + j];
        }
      }
      volatile std::uint64_t sink = 0;
      for (const std::uint64_t sum : sums) {
        sink = sink + sum;
      }
      best = std::max(best, static_cast<double>(buffer.num_bytes()) / (thread_seconds() - start));
    }
    return best;
  }();
  return rate;
}

double peak_flops_per_second(device::Isa isa, Precision precision) {
  static std::map<std::pair<device::Isa, Precision>, double> measured;
  double& best = measured[{isa, precision}];
  if (best == 0.0) {
    for (int pass = 0; pass < 5; ++pass) {
      const double start = thread_seconds();
      const double flops = run_flops(isa, precision);
      best = std::max(best, flops / (thread_seconds() - start));
    }
  }
  return best;
}

}  // namespace fastfd::bench
