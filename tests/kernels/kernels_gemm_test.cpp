#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/gemm/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class GemmTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, GemmTest, ::testing::ValuesIn(backends()), backend_name);

constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kBFloat16};

/// Rows of A and C are wider than needed, to catch kernels that ignore the strides.
constexpr std::int64_t kStridePad = 3;

std::vector<float> run(const device::CpuStream& stream, const PackedWeights& weights,
                       const std::vector<float>& a, std::int64_t m, Precision precision,
                       bool accumulate) {
  const std::int64_t ldc = weights.n() + kStridePad;
  auto c = random_floats(static_cast<std::size_t>(m * ldc), 7);
  const GemmParams params{.m = m,
                          .a = a.data(),
                          .lda = weights.k() + kStridePad,
                          .weights = &weights,
                          .c = c.data(),
                          .ldc = ldc,
                          .accumulate = accumulate,
                          .precision = precision};
  EXPECT_TRUE(launch_gemm(params, stream).is_ok());
  return c;
}

std::vector<float> run_reference(const PackedWeights& weights, const std::vector<float>& a,
                                 std::int64_t m, Precision precision, bool accumulate) {
  const std::int64_t ldc = weights.n() + kStridePad;
  auto c = random_floats(static_cast<std::size_t>(m * ldc), 7);
  reference_gemm({.m = m,
                  .a = a.data(),
                  .lda = weights.k() + kStridePad,
                  .weights = &weights,
                  .c = c.data(),
                  .ldc = ldc,
                  .accumulate = accumulate,
                  .precision = precision});
  return c;
}

TEST(PackedWeightsTest, KeepsEveryElementAndPadsWithZeros) {
  for (const auto& [n, k] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {64, 2}, {65, 3}, {130, 7}}) {
    const auto rows = random_bf16(static_cast<std::size_t>(n * k), 3);
    PackedWeights weights(n, k);
    weights.pack_rows(0, n / 2, rows.data());
    weights.pack_rows(n / 2, n - n / 2, rows.data() + n / 2 * k);
    std::size_t num_nonzero = 0;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < k; ++j) {
        ASSERT_EQ(weights.at(i, j), rows[static_cast<std::size_t>(i * k + j)]);
      }
    }
    const std::size_t num_packed = weights.num_bytes() / sizeof(bf16);
    ASSERT_EQ(num_packed, static_cast<std::size_t>(weights.num_panels() * 64 * ((k + 1) / 2 * 2)));
    for (std::size_t i = 0; i < num_packed; ++i) {
      num_nonzero += weights.data()[i].bits != 0 ? 1 : 0;
    }
    EXPECT_EQ(num_nonzero, static_cast<std::size_t>(n * k));
  }
}

TEST(PackedWeightsTest, HasTheDocumentedLayout) {
  PackedWeights weights(70, 4);
  std::vector<bf16> row = {{1}, {2}, {3}, {4}};
  weights.pack_rows(66, 1, row.data());
  // Panel 1, row 2 of it; pairs of k are 64 rows apart.
  const bf16* panel = weights.data() + 64 * 4;
  EXPECT_EQ(panel[2 * 2].bits, 1);
  EXPECT_EQ(panel[2 * 2 + 1].bits, 2);
  EXPECT_EQ(panel[64 * 2 + 2 * 2].bits, 3);
  EXPECT_EQ(panel[64 * 2 + 2 * 2 + 1].bits, 4);
}

TEST_P(GemmTest, EqualsTheReference) {
  for (const std::int64_t m : {0, 1, 2, 3, 5, 6, 7, 13, 64, 97}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                               {16, 64},
                               {31, 17},
                               {64, 2},
                               {127, 33},
                               {192, 128},
                               {320, 65}}) {
      const auto weights = random_weights(n, k, 11);
      const auto a = random_floats(static_cast<std::size_t>(m * (k + kStridePad)), 5);
      for (const Precision precision : kPrecisions) {
        for (const bool accumulate : {false, true}) {
          const auto expected = run_reference(weights, a, m, precision, accumulate);
          const auto actual = run(stream(), weights, a, m, precision, accumulate);
          // The columns between the rows of C are untouched, hence in both.
          expect_near(
              actual, expected, 2e-5F,
              "m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k));
        }
      }
    }
  }
}

TEST_P(GemmTest, AddsABiasToEveryRow) {
  const std::int64_t m = 7;
  const auto weights = random_weights(70, 33, 11);
  const auto a = random_floats(static_cast<std::size_t>(m * 33), 5);
  const auto bias = random_floats(70, 6);
  for (const Precision precision : kPrecisions) {
    for (const bool accumulate : {false, true}) {
      auto actual = random_floats(static_cast<std::size_t>(m * 70), 7);
      auto expected = actual;
      GemmParams params{.m = m,
                        .a = a.data(),
                        .lda = 33,
                        .weights = &weights,
                        .c = actual.data(),
                        .ldc = 70,
                        .accumulate = accumulate,
                        .bias = bias.data(),
                        .precision = precision};
      ASSERT_TRUE(launch_gemm(params, stream()).is_ok());
      params.c = expected.data();
      reference_gemm(params);
      expect_near(actual, expected, 2e-5F, "bias");
    }
  }
}

TEST_P(GemmTest, SplitsLargeWorkWithTheSameResult) {
  const std::int64_t m = 40;
  const auto weights = random_weights(1000, 256, 2);
  const auto a = random_floats(static_cast<std::size_t>(m * (256 + kStridePad)), 6);
  for (const Precision precision : kPrecisions) {
    const TestStream alone(stream().isa, 1);
    EXPECT_EQ(run(stream(), weights, a, m, precision, false),
              run(alone.stream, weights, a, m, precision, false));
    expect_near(run(stream(), weights, a, m, precision, false),
                run_reference(weights, a, m, precision, false), 1e-4F, "large");
  }
}

TEST_P(GemmTest, RowsDoNotDependOnTheBatch) {
  for (const auto& [n, k] :
       {std::pair<std::int64_t, std::int64_t>{512, 256}, {200, 131}, {64, 1024}, {1280, 64}}) {
    const auto weights = random_weights(n, k, 4);
    const std::int64_t lda = k + kStridePad;
    const std::int64_t ldc = n + kStridePad;
    const auto a = random_floats(static_cast<std::size_t>(131 * lda), 8);
    for (const Precision precision : kPrecisions) {
      const auto all = run(stream(), weights, a, 131, precision, false);
      for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 64, 96, 97}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{17}, 131 - m}) {
          if (first + m > 131) {
            continue;
          }
          const std::vector<float> part(a.begin() + first * lda, a.begin() + (first + m) * lda);
          const auto c = run(stream(), weights, part, m, precision, false);
          for (std::int64_t i = 0; i < m; ++i) {
            ASSERT_TRUE(same_bits(c.data() + i * ldc, all.data() + (first + i) * ldc,
                                  static_cast<std::size_t>(n)))
                << "row " << first + i << " with m = " << m << ", n = " << n << ", k = " << k;
          }
        }
      }
    }
  }
}

TEST_P(GemmTest, Float32PrecisionKeepsActivationsFloat) {
  PackedWeights weights(1, 1);
  const bf16 one = bf16::from_float(1.0F);
  weights.pack_rows(0, 1, &one);
  const float a = 1.001F;  // not a bf16
  float c = 0.0F;
  GemmParams params{.m = 1, .a = &a, .lda = 1, .weights = &weights, .c = &c, .ldc = 1};
  ASSERT_TRUE(launch_gemm(params, stream()).is_ok());
  EXPECT_EQ(c, a);
  params.precision = Precision::kBFloat16;
  ASSERT_TRUE(launch_gemm(params, stream()).is_ok());
  EXPECT_EQ(c, bf16::from_float(a).to_float());
}

TEST_P(GemmTest, NanReachesItsRowOnly) {
  const auto weights = random_weights(70, 32, 4);
  std::vector<float> a(3 * 32, 1.0F);
  a[32 + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : kPrecisions) {
    std::vector<float> c(3 * 70, 0.0F);
    const GemmParams params{.m = 3,
                            .a = a.data(),
                            .lda = 32,
                            .weights = &weights,
                            .c = c.data(),
                            .ldc = 70,
                            .precision = precision};
    ASSERT_TRUE(launch_gemm(params, stream()).is_ok());
    for (std::size_t i = 0; i < c.size(); ++i) {
      EXPECT_EQ(std::isnan(c[i]), i / 70 == 1) << i;
    }
  }
}

TEST_P(GemmTest, ABatchIsItsProducts) {
  constexpr std::int64_t kHeads = 9;
  constexpr std::int64_t kRows = 5;
  std::vector<PackedWeights> weights;
  for (std::uint32_t head = 0; head < kHeads; ++head) {
    weights.push_back(random_weights(200, 96, 60 + head));
  }
  // Heads side by side in the rows of A and C, as attention has them.
  const auto a = random_floats(static_cast<std::size_t>(kRows * kHeads * 96), 61);
  for (const Precision precision : kPrecisions) {
    const auto run_batch = [&](bool batched) {
      std::vector<float> c(static_cast<std::size_t>(kRows * kHeads * 200));
      std::vector<GemmParams> batch;
      for (std::int64_t head = 0; head < kHeads; ++head) {
        batch.push_back({.m = kRows,
                         .a = a.data() + head * 96,
                         .lda = kHeads * 96,
                         .weights = &weights[static_cast<std::size_t>(head)],
                         .c = c.data() + head * 200,
                         .ldc = kHeads * 200,
                         .precision = precision});
      }
      if (batched) {
        EXPECT_TRUE(launch_gemm_batch(batch, stream()).is_ok());
      } else {
        for (const GemmParams& params : batch) {
          EXPECT_TRUE(launch_gemm(params, stream()).is_ok());
        }
      }
      return c;
    };
    EXPECT_EQ(run_batch(true), run_batch(false));
  }
  std::vector<GemmParams> bad(3, {.m = 1, .a = a.data(), .lda = 96, .weights = weights.data()});
  std::vector<float> c(200);
  for (GemmParams& params : bad) {
    params.c = c.data();
    params.ldc = 200;
  }
  bad[1].lda = 95;
  EXPECT_EQ(launch_gemm_batch(bad, stream()).code(), StatusCode::kInvalidArgument);
  bad[1].weights = nullptr;
  EXPECT_EQ(launch_gemm_batch(bad, stream()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(launch_gemm_batch({}, stream()).is_ok());
}

TEST(GemmArgumentsTest, ShortStridesAreRefused) {
  const auto weights = random_weights(4, 4, 1);
  std::vector<float> a(16);
  std::vector<float> c(16);
  GemmParams params{.m = 2, .a = a.data(), .lda = 3, .weights = &weights, .c = c.data(), .ldc = 4};
  EXPECT_EQ(launch_gemm(params, {}).code(), StatusCode::kInvalidArgument);
  params.lda = 4;
  params.ldc = 3;
  EXPECT_EQ(launch_gemm(params, {}).code(), StatusCode::kInvalidArgument);
  params.weights = nullptr;
  EXPECT_EQ(launch_gemm(params, {}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::kernels::testing
