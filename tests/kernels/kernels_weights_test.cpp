// What makes weights at load: random numbers, and rounding to FP8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/quantize/op.h"
#include "kernels/random_fill/generator.h"
#include "kernels/random_fill/op.h"

namespace fastfd::kernels {
namespace {

std::vector<bf16> random_values(std::uint64_t key, std::uint64_t count, float stddev,
                                std::uint64_t first = 0) {
  std::vector<bf16> values(count);
  random_fill({.key = key, .first = first, .count = count, .stddev = stddev, .out = values.data()});
  return values;
}

TEST(RandomFillTest, IsNearlyNormal) {
  constexpr std::uint64_t kCount = 1U << 18;
  constexpr float kStddev = 0.25F;
  double sum = 0.0;
  double squares = 0.0;
  double fourths = 0.0;
  float largest = 0.0F;
  for (const bf16 value : random_values(7, kCount, kStddev)) {
    const double x = value.to_float() / kStddev;
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    largest = std::max(largest, std::fabs(value.to_float()));
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0, 0.01);
  EXPECT_NEAR(fourths / kCount, 2.7, 0.05);  // a normal distribution's is 3
  EXPECT_GT(largest, 3.2F * kStddev);
  EXPECT_LT(largest, 3.5F * kStddev);
}

TEST(RandomFillTest, AValueDependsOnKeyAndIndexAlone) {
  const auto whole = random_values(3, 1000, 1.0F);
  const auto part = random_values(3, 300, 1.0F, 600);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 600));
  std::size_t num_equal = 0;
  const auto other = random_values(4, 1000, 1.0F);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    num_equal += whole[i] == other[i] ? 1 : 0;
  }
  EXPECT_LT(num_equal, 50U);
}

// Measurements of dummy models are compared over versions: the models must stay the same.
TEST(RandomFillTest, StaysWhatItIs) {
  static_assert(random_bits(0, 0) == 0xe220a8397b1dcdafULL);  // as published for splitmix64
  static_assert(random_bits(0, 1) == 0x6e789e6aa1b965f4ULL);
}

TEST(QuantizeTest, EveryE4m3ValueComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<std::uint8_t>(bits);
    const float value = from_e4m3(code);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(to_e4m3(value), code) << value;
    }
  }
  EXPECT_EQ(from_e4m3(0x7e), 448.0F);
  EXPECT_EQ(from_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(from_e4m3(0x38), 1.0F);
}

TEST(QuantizeTest, RoundsToTheNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = from_e4m3(static_cast<std::uint8_t>(bits));
    const float high = from_e4m3(static_cast<std::uint8_t>(bits + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_e4m3(middle), bits % 2 == 0 ? bits : bits + 1) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0F)), bits) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 500.0F)), bits + 1) << middle;
    EXPECT_EQ(to_e4m3(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x80) << middle;
  }
  EXPECT_EQ(to_e4m3(1e30F), 0x7e);
  EXPECT_EQ(to_e4m3(-1e30F), 0xfe);
}

TEST(QuantizeTest, ABlocksLargestValueBecomesTheLargestE4m3) {
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kCols = 384;
  auto values = random_values(1, kRows * kCols, 0.02F);
  for (std::int64_t i = 0; i < kQuantizeBlock; ++i) {  // the block at (1, 1): nothing but zeros
    std::fill_n(values.begin() + (kQuantizeBlock + i) * kCols + kQuantizeBlock, kQuantizeBlock,
                bf16{0});
  }
  std::vector<std::uint8_t> e4m3(values.size());
  std::vector<float> scales(6, -1.0F);
  reference_quantize({.rows = kRows,
                      .cols = kCols,
                      .values = values.data(),
                      .e4m3 = e4m3.data(),
                      .scales = scales.data()});
  EXPECT_EQ(scales[4], 1.0F);
  std::vector<float> largest(6, 0.0F);
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const auto block =
        static_cast<std::size_t>(i / kCols / kQuantizeBlock * 3 + i % kCols / kQuantizeBlock);
    const float value = values[static_cast<std::size_t>(i)].to_float();
    const float back = from_e4m3(e4m3[static_cast<std::size_t>(i)]) * scales[block];
    // Half a step of 3 bits of mantissa, or of the smallest exponent.
    ASSERT_NEAR(back, value, std::max(std::fabs(value) / 16, scales[block] * 0x1p-10F) * 1.0001F);
    largest[block] = std::max(largest[block], std::fabs(back));
  }
  for (std::size_t block = 0; block < scales.size(); ++block) {
    EXPECT_FLOAT_EQ(largest[block], block == 4 ? 0.0F : 448.0F * scales[block]);
  }
}

TEST(QuantizeTest, MagnitudesWithoutAScaleBecomeZero) {
  std::vector<bf16> values(kQuantizeBlock * kQuantizeBlock, bf16::from_float(1e-37F));
  std::vector<std::uint8_t> e4m3(values.size(), 0xff);
  float scale = 0.0F;
  reference_quantize({.rows = kQuantizeBlock,
                      .cols = kQuantizeBlock,
                      .values = values.data(),
                      .e4m3 = e4m3.data(),
                      .scales = &scale});
  EXPECT_EQ(scale, 1.0F);
  EXPECT_EQ(std::count(e4m3.begin(), e4m3.end(), 0), kQuantizeBlock * kQuantizeBlock);
}

TEST(DequantizeTest, EveryValueTimesEveryKindOfScale) {
  std::vector<std::uint8_t> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint8_t>(i);
  }
  for (const float scale : {1.0F, 0.0F, -0.37F, 1.2345e-5F, 3e-39F, 1e30F}) {
    const std::vector<float> scales(2, scale);
    std::vector<float> floats(all.size());
    std::vector<bf16> rounded(all.size());
    const DequantizeParams params{
        .cols = 256, .count = 256, .e4m3 = all.data(), .scales = scales.data()};
    dequantize(params, floats.data());
    dequantize(params, rounded.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if ((i & 0x7f) == 0x7f) {
        continue;  // NaN
      }
      const float expected = from_e4m3(all[i]) * scale;
      ASSERT_EQ(floats[i], expected) << i << " x " << scale;
      ASSERT_EQ(rounded[i], bf16::from_float(expected)) << i << " x " << scale;
    }
  }
}

TEST(DequantizeTest, AnyPartOfAMatrixWithPartialBlocks) {
  constexpr std::int64_t kRows = 260;
  constexpr std::int64_t kCols = 150;
  constexpr std::int64_t kBlockCols = 2;
  std::vector<std::uint8_t> e4m3(kRows * kCols);
  for (std::size_t i = 0; i < e4m3.size(); ++i) {
    e4m3[i] = static_cast<std::uint8_t>(i * 7 % 127);
  }
  const std::vector<float> scales{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  const auto expect_part = [&](std::int64_t first, std::int64_t count) {
    // Scales from the block row on in which the part begins, as readers of large matrices have
    // them.
    const std::int64_t block_row = first / kCols / kQuantizeBlock;
    std::vector<float> out(static_cast<std::size_t>(count), -1.0F);
    dequantize({.cols = kCols,
                .first = first - block_row * kQuantizeBlock * kCols,
                .count = count,
                .e4m3 = e4m3.data() + first,
                .scales = scales.data() + block_row * kBlockCols},
               out.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (first + i) / kCols;
      const std::int64_t col = (first + i) % kCols;
      const auto block =
          static_cast<std::size_t>(row / kQuantizeBlock * kBlockCols + col / kQuantizeBlock);
      const float expected = from_e4m3(e4m3[static_cast<std::size_t>(first + i)]) * scales[block];
      ASSERT_EQ(out[static_cast<std::size_t>(i)], expected) << row << ", " << col;
    }
  };
  expect_part(0, kRows * kCols);
  expect_part(127 * kCols + 100, 2 * kCols);
  expect_part(128 * kCols, 3);
  expect_part(255 * kCols + 149, kCols);
  expect_part(5, 0);
}

TEST(DequantizeTest, FindsNan) {
  std::vector<std::uint8_t> e4m3(10'000, 0x7e);
  const auto find = [&](std::int64_t count) { return find_nan_e4m3(e4m3.data(), count); };
  EXPECT_EQ(find(10'000), 10'000);
  EXPECT_EQ(find(0), 0);
  e4m3[9'999] = 0x7f;
  EXPECT_EQ(find(10'000), 9'999);
  EXPECT_EQ(find(9'999), 9'999);
  e4m3[4'095] = 0xff;
  EXPECT_EQ(find(10'000), 4'095);
  e4m3[4'096] = 0xff;
  EXPECT_EQ(find(10'000), 4'095);
}

}  // namespace
}  // namespace fastfd::kernels
