#pragma once

/// Shared by the operator tests: every instruction set this machine has, with and without workers,
/// and seeded data.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/device/cpu.h"
#include "kernels/gemm/op.h"
#include "support/random_values.h"

namespace fastfd::kernels::testing {

inline std::vector<device::Isa> available_isas() {
  std::vector<device::Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(device::detect_isa()); ++isa) {
    isas.push_back(static_cast<device::Isa>(isa));
  }
  return isas;
}

/// A stream with its own workers.
struct TestStream {
  TestStream(device::Isa isa, std::uint32_t num_threads) : pool(num_threads) {
    stream.isa = isa;
    stream.workers = num_threads > 1 ? &pool : nullptr;
  }
  device::WorkerPool pool;
  device::CpuStream stream;
};

using test::random_floats;
using test::to_bf16;

inline std::vector<bf16> random_bf16(std::size_t count, std::uint32_t seed, float scale = 1.0F) {
  return to_bf16(random_floats(count, seed, scale));
}

inline PackedWeights random_weights(std::int64_t n, std::int64_t k, std::uint32_t seed) {
  PackedWeights weights(n, k);
  const auto rows = random_bf16(static_cast<std::size_t>(n * k), seed,
                                1.0F / std::sqrt(static_cast<float>(k > 0 ? k : 1)));
  weights.pack_rows(0, n, rows.data());
  return weights;
}

/// |a - b| <= tolerance * (1 + |b|) for all elements.
inline void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                        float tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * (1.0F + std::abs(expected[i])))
        << what << ", element " << i;
  }
}

/// Equal bit for bit.
inline bool same_bits(const float* a, const float* b, std::size_t count) {
  return std::equal(a, a + count, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

struct Backend {
  device::Isa isa;
  std::uint32_t num_threads;
};

inline std::vector<Backend> backends() {
  std::vector<Backend> all;
  for (const device::Isa isa : available_isas()) {
    all.push_back({isa, 1});
    all.push_back({isa, 3});
  }
  return all;
}

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  std::string name = device::to_string(info.param.isa);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_" + std::to_string(info.param.num_threads) + "threads";
}

/// Tests that run once per instruction set and number of threads.
class KernelTest : public ::testing::TestWithParam<Backend> {
 protected:
  KernelTest() : backend_(GetParam().isa, GetParam().num_threads) {}
  const device::CpuStream& stream() const { return backend_.stream; }

 private:
  TestStream backend_;
};

}  // namespace fastfd::kernels::testing
