/// The dense products of Qwen3-30B-A3B's attention server: time, the floor that bytes and
/// arithmetic set, and their ratio. bench/gpu/gemm_baseline.py times the same shapes in PyTorch.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "bench/gpu/timing.cuh"
#include "kernels/gemm/op_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/random_data.cuh"

namespace fastfd::bench {
namespace {

using kernels::cuda::GemmOutput;
using kernels::cuda::GemmParams;
using testing::DeviceArray;
using testing::fill_random;

struct Projection {
  const char* name;
  std::int64_t n;
  std::int64_t k;
  GemmOutput output;
};

constexpr Projection kProjections[] = {
    {"qkv", 5120, 2048, GemmOutput::kBFloat16},
    {"o + residual", 2048, 4096, GemmOutput::kAddFloat32},
    {"router", 128, 2048, GemmOutput::kFloat32},
    {"LM head", 151936, 2048, GemmOutput::kFloat32},
};

void run(const Projection& projection, std::int64_t rows) {
  // Weights in turns, more of them than the cache holds.
  constexpr std::int64_t kWeightBytes = 256 << 20;
  const std::int64_t matrix_values = projection.n * projection.k;
  const int num_matrices =
      static_cast<int>(std::clamp<std::int64_t>(kWeightBytes / (matrix_values * 2), 1, 64));
  DeviceArray<bf16> weights(static_cast<std::size_t>(matrix_values * num_matrices));
  DeviceArray<bf16> a(static_cast<std::size_t>(rows * projection.k));
  DeviceArray<float> c(static_cast<std::size_t>(rows * projection.n));
  DeviceArray<std::uint32_t> num_rows(std::vector{static_cast<std::uint32_t>(rows)});
  require(fill_random(weights.data(), weights.size(), 1, 0.1F));
  require(fill_random(a.data(), a.size(), 2));
  require(fill_random(c.data(), c.size(), 3));
  GemmParams params;
  params.max_rows = rows;
  params.num_rows = num_rows.data();
  params.n = projection.n;
  params.k = projection.k;
  params.a = a.data();
  params.lda = projection.k;
  params.c = c.data();
  params.ldc = projection.n;
  params.output = projection.output;
  const int calls = std::max(num_matrices, 4);
  const double time = median_microseconds(calls, [&](int i, cudaStream_t stream) {
    params.weights = weights.data() + (i % num_matrices) * matrix_values;
    require(launch_gemm(params, stream));
  });
  const double output_bytes = projection.output == GemmOutput::kBFloat16  ? 2
                              : projection.output == GemmOutput::kFloat32 ? 4
                                                                          : 8;
  const auto count = static_cast<double>(rows);
  const auto n = static_cast<double>(projection.n);
  const auto k = static_cast<double>(projection.k);
  const double bytes = 2 * n * k + 2 * count * k + output_bytes * count * n;
  const double flops = 2 * count * n * k;
  const double floor = floor_microseconds(bytes, flops, kBf16FlopsPerSecond);
  std::printf(
      "%-12s rows %4ld  n %6ld k %4ld  %8.2f us  floor %7.2f us  ratio %5.2f  %6.1f GB/s  "
      "%6.1f TFLOP/s\n",
      projection.name, static_cast<long>(rows), static_cast<long>(projection.n),
      static_cast<long>(projection.k), time, floor, time / floor, bytes / time * 1e-3,
      flops / time * 1e-6);
}

}  // namespace
}  // namespace fastfd::bench

int main() {
  for (const auto& projection : fastfd::bench::kProjections) {
    for (const std::int64_t rows : {1, 16, 64, 256, 1024}) {
      fastfd::bench::run(projection, rows);
    }
  }
  return 0;
}
