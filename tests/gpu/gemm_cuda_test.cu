#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/op_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/random_data.cuh"

namespace fastfd::kernels::cuda {
namespace {

using testing::DeviceArray;
using testing::fill_random;
using testing::relative_error;

/// One thread an element, in double.
__global__ void naive_gemm_kernel(const bf16* a, std::int64_t lda, const bf16* weights, int n,
                                  int k, float* c) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  if (column >= n) {
    return;
  }
  double sum = 0.0;
  for (int i = 0; i < k; ++i) {
    sum += static_cast<double>(a[row * lda + i].to_float()) *
           weights[static_cast<std::int64_t>(column) * k + i].to_float();
  }
  c[static_cast<std::int64_t>(row) * n + column] = static_cast<float>(sum);
}

struct Dims {
  std::int64_t n;
  std::int64_t k;
};

/// Random A [max_rows, k] with padded rows, and W; runs launch_gemm on them.
class Problem {
 public:
  Problem(Dims dims, std::int64_t max_rows, std::uint64_t seed = 1)
      : dims_(dims),
        max_rows_(max_rows),
        a_(static_cast<std::size_t>(max_rows * lda())),
        weights_(static_cast<std::size_t>(dims.n * dims.k)),
        num_rows_(1) {
    EXPECT_TRUE(fill_random(a_.data(), a_.size(), seed).is_ok());
    EXPECT_TRUE(fill_random(weights_.data(), weights_.size(), seed + 100, 0.1F).is_ok());
  }

  std::int64_t lda() const { return dims_.k + 24; }
  std::int64_t ldc() const { return dims_.n + 8; }
  void set_num_rows(std::uint32_t num_rows) { num_rows_.put({num_rows}); }

  GemmParams params(void* c, GemmOutput output) {
    GemmParams params;
    params.max_rows = max_rows_;
    params.num_rows = num_rows_.data();
    params.n = dims_.n;
    params.k = dims_.k;
    params.a = a_.data();
    params.lda = lda();
    params.weights = weights_.data();
    params.c = c;
    params.ldc = ldc();
    params.output = output;
    return params;
  }

  /// C with the padding of its rows: [max_rows, ldc]. Elements nobody wrote are NaN.
  std::vector<float> run(std::uint32_t num_rows, GemmOutput output = GemmOutput::kFloat32) {
    set_num_rows(num_rows);
    if (output == GemmOutput::kBFloat16) {
      DeviceArray<bf16> c(static_cast<std::size_t>(max_rows_ * ldc()));
      EXPECT_TRUE(launch_gemm(params(c.data(), output), nullptr).is_ok());
      std::vector<float> values;
      for (const bf16 value : c.get()) {
        values.push_back(value.to_float());
      }
      return values;
    }
    DeviceArray<float> c(static_cast<std::size_t>(max_rows_ * ldc()));
    if (output == GemmOutput::kAddFloat32) {
      EXPECT_TRUE(fill_random(c.data(), c.size(), kResidualSeed).is_ok());
    }
    EXPECT_TRUE(launch_gemm(params(c.data(), output), nullptr).is_ok());
    return c.get();
  }

  /// [num_rows, n]
  std::vector<float> reference(std::uint32_t num_rows) {
    DeviceArray<float> c(static_cast<std::size_t>(num_rows * dims_.n));
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>((dims_.n + 127) / 128), num_rows);
    shape.block = dim3(128);
    EXPECT_TRUE(launch(naive_gemm_kernel, shape, nullptr, "naive_gemm_kernel", a_.data(), lda(),
                       weights_.data(), static_cast<int>(dims_.n), static_cast<int>(dims_.k),
                       c.data())
                    .is_ok());
    return c.get();
  }

  /// The written part of what run() gave; checks that the rest was left alone.
  std::vector<float> rows_of(const std::vector<float>& c, std::uint32_t num_rows,
                             bool check_rest = true) const {
    std::vector<float> rows;
    for (std::int64_t row = 0; row < max_rows_; ++row) {
      const auto begin = c.begin() + row * ldc();
      const std::int64_t written = row < num_rows ? dims_.n : 0;
      rows.insert(rows.end(), begin, begin + written);
      if (check_rest) {
        EXPECT_TRUE(std::all_of(begin + written, begin + ldc(),
                                [](float value) { return std::isnan(value); }))
            << "row " << row << " of " << num_rows << " was written past its end";
      }
    }
    return rows;
  }

  static constexpr std::uint64_t kResidualSeed = 77;

 private:
  Dims dims_;
  std::int64_t max_rows_;
  DeviceArray<bf16> a_;
  DeviceArray<bf16> weights_;
  DeviceArray<std::uint32_t> num_rows_;
};

class GemmCuda : public ::testing::TestWithParam<std::tuple<Dims, int>> {};

TEST_P(GemmCuda, EveryOutputMatchesTheNaiveProduct) {
  const auto [dims, rows] = GetParam();
  const auto num_rows = static_cast<std::uint32_t>(rows);
  Problem problem(dims, std::max(rows, 1));
  const auto expected = problem.reference(num_rows);
  const auto c = problem.run(num_rows);
  EXPECT_LT(relative_error(problem.rows_of(c, num_rows), expected), 1e-5);
  const auto rounded = problem.run(num_rows, GemmOutput::kBFloat16);
  EXPECT_LT(relative_error(problem.rows_of(rounded, num_rows), expected), 5e-3);
  auto sums = problem.run(num_rows, GemmOutput::kAddFloat32);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] -= testing::random_value(Problem::kResidualSeed, i);
  }
  EXPECT_LT(relative_error(problem.rows_of(sums, num_rows, false), expected), 1e-5);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<Dims, int>>& info) {
  const auto [dims, rows] = info.param;
  std::string name("n");
  name += std::to_string(dims.n) + "k" + std::to_string(dims.k);
  return name + "rows" + std::to_string(rows);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmCuda,
    ::testing::Combine(::testing::Values(Dims{64, 64}, Dims{8, 8}, Dims{200, 328}, Dims{128, 2048},
                                         Dims{2048, 4096}, Dims{6152, 512}),
                       ::testing::Values(0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300)),
    case_name);

TEST(GemmCudaBatch, ARowsBitsDependOnNothingButItself) {
  for (const Dims dims : {Dims{192, 512}, Dims{2048, 4096}, Dims{5120, 2048}, Dims{12288, 256}}) {
    Problem large(dims, 300);
    const auto expected = large.rows_of(large.run(300), 300);
    for (const std::uint32_t num_rows : {1U, 13U, 16U, 17U, 50U, 64U, 65U, 200U}) {
      Problem bucket(dims, num_rows);  // the same first rows of A, in the bucket's own tiles
      const auto rows = bucket.rows_of(bucket.run(num_rows), num_rows);
      EXPECT_EQ(std::memcmp(rows.data(), expected.data(), rows.size() * sizeof(float)), 0)
          << num_rows << " rows, n " << dims.n;
      const auto part = large.rows_of(large.run(num_rows), num_rows);
      EXPECT_EQ(std::memcmp(part.data(), expected.data(), part.size() * sizeof(float)), 0)
          << num_rows << " of 300 rows, n " << dims.n;
    }
  }
}

TEST(GemmCudaBias, IsAddedToEveryRowThatIsWritten) {
  constexpr Dims kDims{200, 328};
  constexpr std::uint32_t kRows = 21;
  Problem problem(kDims, 40);
  DeviceArray<float> bias(static_cast<std::size_t>(kDims.n));
  EXPECT_TRUE(fill_random(bias.data(), bias.size(), 9).is_ok());
  problem.set_num_rows(kRows);
  auto expected = problem.reference(kRows);
  const auto values = bias.get();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += values[i % values.size()];
  }
  DeviceArray<float> c(static_cast<std::size_t>(40 * problem.ldc()));
  GemmParams params = problem.params(c.data(), GemmOutput::kFloat32);
  params.bias = bias.data();
  ASSERT_TRUE(launch_gemm(params, nullptr).is_ok());
  EXPECT_LT(relative_error(problem.rows_of(c.get(), kRows), expected), 1e-5);
}

// Attention heads: rows of A and C hold those of all products side by side.
TEST(GemmCudaBatches, EachProductIsWhatItIsAlone) {
  constexpr std::int64_t kBatches = 5;
  for (const Dims dims : {Dims{512, 128}, Dims{128, 512}, Dims{72, 40}}) {
    // More columns than a product takes or gives: what belongs to somebody else.
    const std::int64_t stride_a = dims.k + 64;
    const std::int64_t stride_c = dims.n + 64;
    for (const std::uint32_t num_rows : {1U, 16U, 40U, 100U}) {
      const std::int64_t max_rows = num_rows + 3;
      DeviceArray<bf16> a(static_cast<std::size_t>(max_rows * kBatches * stride_a));
      DeviceArray<bf16> weights(static_cast<std::size_t>(kBatches * dims.n * dims.k));
      DeviceArray<bf16> c(static_cast<std::size_t>(max_rows * kBatches * stride_c));
      const DeviceArray<std::uint32_t> device_rows(std::vector{num_rows});
      ASSERT_TRUE(fill_random(a.data(), a.size(), 1).is_ok());
      ASSERT_TRUE(fill_random(weights.data(), weights.size(), 2, 0.1F).is_ok());
      GemmParams params{.max_rows = max_rows,
                        .num_rows = device_rows.data(),
                        .n = dims.n,
                        .k = dims.k,
                        .a = a.data(),
                        .lda = kBatches * stride_a,
                        .weights = weights.data(),
                        .c = c.data(),
                        .ldc = kBatches * stride_c,
                        .num_batches = kBatches,
                        .batch_stride_a = stride_a,
                        .batch_stride_c = stride_c};
      ASSERT_TRUE(launch_gemm(params, nullptr).is_ok());
      const auto values = c.get();
      for (std::int64_t batch = 0; batch < kBatches; ++batch) {
        DeviceArray<float> naive(static_cast<std::size_t>(num_rows * dims.n));
        LaunchShape shape;
        shape.grid = dim3(static_cast<unsigned>((dims.n + 127) / 128), num_rows);
        shape.block = dim3(128);
        ASSERT_TRUE(launch(naive_gemm_kernel, shape, nullptr, "naive_gemm_kernel",
                           a.data() + batch * stride_a, params.lda,
                           weights.data() + batch * dims.n * dims.k, static_cast<int>(dims.n),
                           static_cast<int>(dims.k), naive.data())
                        .is_ok());
        std::vector<float> product;
        for (std::int64_t row = 0; row < max_rows; ++row) {
          const auto begin = values.begin() + row * params.ldc + batch * stride_c;
          const std::int64_t written = row < num_rows ? dims.n : 0;
          for (std::int64_t i = 0; i < stride_c; ++i) {
            if (i < written) {
              product.push_back(begin[i].to_float());
            } else {
              ASSERT_EQ(begin[i].bits, 0xffff) << "row " << row << " column " << i;
            }
          }
        }
        EXPECT_LT(relative_error(product, naive.get()), 5e-3) << "product " << batch;
      }
    }
  }
}

TEST(GemmCudaGraph, AReplayReadsTheRowCountFromTheDevice) {
  constexpr Dims kDims{512, 256};
  Problem problem(kDims, 100);
  DeviceArray<float> c(static_cast<std::size_t>(100 * problem.ldc()));
  cudaStream_t stream = nullptr;
  testing::require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  testing::require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const Status captured = launch_gemm(problem.params(c.data(), GemmOutput::kFloat32), stream);
  testing::require_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  ASSERT_TRUE(captured.is_ok()) << captured.message();
  testing::require_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (const std::uint32_t num_rows : {7U, 100U, 0U, 1U}) {
    testing::require_cuda(cudaMemset(c.data(), 0xff, c.num_bytes()), "poison");
    problem.set_num_rows(num_rows);
    testing::require_cuda(cudaDeviceSynchronize(), "inputs");
    testing::require_cuda(cudaGraphLaunch(executable, stream), "replay");
    EXPECT_LT(relative_error(problem.rows_of(c.get(), num_rows), problem.reference(num_rows)), 1e-5)
        << num_rows;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(GemmCudaArguments, WhatDoesNotFitIsRefused) {
  Problem problem({64, 64}, 4);
  DeviceArray<float> c(static_cast<std::size_t>(4 * problem.ldc()));
  GemmParams params = problem.params(c.data(), GemmOutput::kFloat32);
  params.n = 60;
  EXPECT_EQ(launch_gemm(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.n = 64;
  params.lda = 32;
  EXPECT_EQ(launch_gemm(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.lda = problem.lda();
  params.a += 1;
  EXPECT_EQ(launch_gemm(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.a -= 1;
  params.num_batches = 0;
  EXPECT_EQ(launch_gemm(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.num_batches = 2;
  params.batch_stride_a = 4;
  EXPECT_EQ(launch_gemm(params, nullptr).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::kernels::cuda
