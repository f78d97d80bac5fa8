#include "attention_support.h"
#include "kernels/embedding/op.h"
#include "kernels/embedding/op_cuda.h"
#include "kernels/norm/op.h"
#include "kernels/norm/op_cuda.h"
#include "kernels/sigmoid_gate/op.h"
#include "kernels/sigmoid_gate/op_cuda.h"
#include "kernels/swiglu/op_cuda.h"

namespace fastfd::testing {
namespace {

DeviceArray<layout::LaneControl> control_of(std::int64_t num_rows, std::int64_t num_samples = 0) {
  layout::LaneControl control;
  control.num_rows = static_cast<std::uint32_t>(num_rows);
  control.num_samples = static_cast<std::uint32_t>(num_samples);
  return DeviceArray<layout::LaneControl>(std::vector{control});
}

TEST(RmsNormCudaTest, EqualsTheReference) {
  constexpr std::int64_t kRows = 9;
  for (const std::int64_t dim : {4, 100, 1024, 2048, 4096, 4100, 7168}) {
    const auto count = static_cast<std::size_t>(kRows * dim);
    const auto x = random_floats(count, 1, 3.0F);
    const auto weight = random_floats(static_cast<std::size_t>(dim), 2);
    std::vector<float> expected(count);
    kernels::reference_rms_norm({.num_rows = kRows,
                                 .dim = dim,
                                 .x = x.data(),
                                 .weight = weight.data(),
                                 .y = expected.data()});
    const DeviceArray<float> device_x(x);
    const DeviceArray<float> device_weight(weight);
    for (const std::int64_t num_rows : {std::int64_t{0}, std::int64_t{1}, kRows}) {
      DeviceArray<bf16> y(count);
      const auto control = control_of(num_rows);
      ASSERT_TRUE(kernels::cuda::launch_rms_norm({.max_rows = kRows,
                                                  .dim = dim,
                                                  .control = control.data(),
                                                  .x = device_x.data(),
                                                  .weight = device_weight.data(),
                                                  .y = y.data()},
                                                 nullptr)
                      .is_ok());
      auto actual = to_floats(y.get());
      const auto written = static_cast<std::size_t>(num_rows * dim);
      for (std::size_t i = written; i < count; ++i) {
        ASSERT_TRUE(std::isnan(actual[i])) << "a row past the batch was written";
      }
      actual.resize(written);
      EXPECT_LT(relative_error(actual, {expected.begin(),
                                        expected.begin() + static_cast<std::ptrdiff_t>(written)}),
                5e-3)
          << dim;
    }
  }
}

TEST(RmsNormCudaTest, GathersTheRowsOfSamples) {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kDim = 256;
  const auto x = random_floats(kRows * kDim, 3);
  const auto weight = random_floats(kDim, 4);
  std::vector<float> all(x.size());
  kernels::reference_rms_norm(
      {.num_rows = kRows, .dim = kDim, .x = x.data(), .weight = weight.data(), .y = all.data()});
  const std::vector<layout::LaneSample> samples = {{.row = 5}, {.row = 0}, {.row = 2}, {.row = 1}};
  const DeviceArray<layout::LaneSample> device_samples(samples);
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> device_weight(weight);
  const auto control = control_of(kRows, 3);
  DeviceArray<bf16> y(4 * kDim);
  ASSERT_TRUE(kernels::cuda::launch_rms_norm({.max_rows = 4,
                                              .dim = kDim,
                                              .control = control.data(),
                                              .samples = device_samples.data(),
                                              .x = device_x.data(),
                                              .weight = device_weight.data(),
                                              .y = y.data()},
                                             nullptr)
                  .is_ok());
  auto actual = to_floats(y.get());
  EXPECT_TRUE(std::isnan(actual[3 * kDim]));
  actual.resize(3 * kDim);
  std::vector<float> expected;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>(samples[i].row * kDim);
    expected.insert(expected.end(), row, row + kDim);
  }
  EXPECT_LT(relative_error(actual, expected), 5e-3);
}

TEST(EmbeddingCudaTest, TakesNamedAndLastSampledTokens) {
  constexpr std::int64_t kDim = 72;
  constexpr std::int64_t kVocab = 50;
  const auto table = to_bf16(random_floats(kDim * kVocab, 5));
  // The last row is past the batch; -1 and 50 are no tokens.
  const std::vector<layout::LaneRow> rows = {{.token = 3},  {.slot = 1},   {.token = 49},
                                             {.slot = 2},   {.token = 50}, {.slot = 0},
                                             {.token = -7}, {.token = 1}};
  const std::vector<TokenId> last_tokens = {-1, 17, 0};
  const std::vector<TokenId> expected_tokens = {3, 17, 49, 0, -1, -1, -1};
  const DeviceArray<bf16> device_table(table);
  const DeviceArray<layout::LaneRow> device_rows(rows);
  const DeviceArray<TokenId> device_last(last_tokens);
  const auto control = control_of(7);
  DeviceArray<float> out(rows.size() * kDim);
  ASSERT_TRUE(kernels::cuda::launch_embedding({.max_rows = static_cast<std::int64_t>(rows.size()),
                                               .dim = kDim,
                                               .vocab_size = kVocab,
                                               .control = control.data(),
                                               .rows = device_rows.data(),
                                               .last_tokens = device_last.data(),
                                               .table = device_table.data(),
                                               .out = out.data()},
                                              nullptr)
                  .is_ok());
  const auto actual = out.get();
  for (std::size_t row = 0; row < expected_tokens.size(); ++row) {
    for (std::size_t i = 0; i < kDim; ++i) {
      const TokenId token = expected_tokens[row];
      const float expected =
          token < 0 ? 0.0F : table[static_cast<std::size_t>(token) * kDim + i].to_float();
      ASSERT_EQ(actual[row * kDim + i], expected) << "row " << row;
    }
  }
  EXPECT_TRUE(std::isnan(actual[7 * kDim]));
}

TEST(SwigluCudaTest, GatesAndWeighsEveryRow) {
  constexpr std::int64_t kRows = 5;
  constexpr std::uint32_t kWritten = 3;
  constexpr std::int64_t kInput = 264;
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  for (const std::int64_t dim : {8, 200, 2048, 4104}) {
    const auto gate_up = to_bf16(random_floats(static_cast<std::size_t>(kRows * 2 * dim), 1, 2.0F));
    const auto input = to_bf16(random_floats(kRows * kInput, 2));
    const auto project = to_bf16(random_floats(kInput, 3, 0.1F));
    const DeviceArray<bf16> device_gate_up(gate_up);
    const DeviceArray<bf16> device_input(input);
    const DeviceArray<bf16> device_project(project);
    const auto control = control_of(kWritten);
    for (const bool is_weighed : {false, true}) {
      DeviceArray<bf16> hidden(static_cast<std::size_t>(kRows * dim));
      ASSERT_TRUE(kernels::cuda::launch_swiglu(
                      {.max_rows = kRows,
                       .control = control.data(),
                       .intermediate_dim = dim,
                       .gate_up = device_gate_up.data(),
                       .hidden = hidden.data(),
                       .input_dim = kInput,
                       .input = device_input.data(),
                       .weight_project = is_weighed ? device_project.data() : nullptr},
                      nullptr)
                      .is_ok());
      auto actual = to_floats(hidden.get());
      std::vector<float> expected;
      for (std::size_t row = 0; row < kWritten; ++row) {
        double logit = 0.0;
        for (std::size_t i = 0; i < kInput; ++i) {
          logit += static_cast<double>(input[row * kInput + i].to_float()) * project[i].to_float();
        }
        const auto width = static_cast<std::size_t>(dim);
        for (std::size_t i = 0; i < width; ++i) {
          const double gate = gate_up[row * 2 * width + i].to_float();
          const double up = gate_up[row * 2 * width + width + i].to_float();
          const double weight = is_weighed ? sigmoid(logit) : 1.0;
          expected.push_back(static_cast<float>(weight * gate * sigmoid(gate) * up));
        }
      }
      for (std::size_t i = expected.size(); i < actual.size(); ++i) {
        ASSERT_TRUE(std::isnan(actual[i])) << "a row past the batch was written";
      }
      actual.resize(expected.size());
      EXPECT_LT(relative_error(actual, expected), 5e-3) << dim;
    }
  }
}

TEST(SigmoidGateCudaTest, EqualsTheReference) {
  constexpr std::int64_t kRows = 5;
  for (const std::int64_t dim : {8, 1032, 4096}) {
    const auto count = static_cast<std::size_t>(kRows * dim);
    const auto gate = to_bf16(random_floats(count, 1, 4.0F));
    const auto y = to_bf16(random_floats(count, 2));
    const auto gate_values = to_floats(gate);
    std::vector<float> expected = to_floats(y);
    kernels::reference_sigmoid_gate(
        {.num_rows = kRows - 1, .dim = dim, .gate = gate_values.data(), .y = expected.data()});
    const DeviceArray<bf16> device_gate(gate);
    DeviceArray<bf16> device_y(y);
    const auto control = control_of(kRows - 1);  // the last is beyond the lane's
    ASSERT_TRUE(kernels::cuda::launch_sigmoid_gate({.max_rows = kRows,
                                                    .dim = dim,
                                                    .control = control.data(),
                                                    .gate = device_gate.data(),
                                                    .y = device_y.data()},
                                                   nullptr)
                    .is_ok());
    const auto actual = to_floats(device_y.get());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(actual[i], expected[i], 5e-3F * std::abs(expected[i])) << i;
    }
  }
}

TEST(LaneOpsArgumentsTest, OddWidthsAreRefused) {
  EXPECT_EQ(kernels::cuda::launch_sigmoid_gate({.max_rows = 1, .dim = 12}, nullptr).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(kernels::cuda::launch_rms_norm({.max_rows = 1, .dim = 6}, nullptr).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(kernels::cuda::launch_swiglu({.max_rows = 1, .intermediate_dim = 12}, nullptr).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      kernels::cuda::launch_embedding({.max_rows = 1, .dim = 12, .vocab_size = 2}, nullptr).code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::testing
