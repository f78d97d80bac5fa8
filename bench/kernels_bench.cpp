/// Speed of the CPU operators on one thread. Counters: GFLOP/s and GB/s reached, and their ratios
/// to what this machine's core can do (`of_peak`) and reads from memory (`of_memory`), measured
/// first. Weights that fit a cache can exceed the memory ratio.

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm/op.h"
#include "kernels_limits.h"

namespace fastfd::bench {
namespace {

using kernels::PackedWeights;

std::vector<float> random_floats(std::size_t count, float scale = 1.0F) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(engine);
  }
  return values;
}

std::vector<bf16> random_bf16(std::size_t count, float scale) {
  std::vector<bf16> values;
  values.reserve(count);
  for (const float value : random_floats(count, scale)) {
    values.push_back(bf16::from_float(value));
  }
  return values;
}

PackedWeights random_weights(std::int64_t n, std::int64_t k) {
  PackedWeights weights(n, k);
  weights.pack_rows(0, n, random_bf16(static_cast<std::size_t>(n * k), 0.05F).data());
  return weights;
}

void report(benchmark::State& state, device::Isa isa, Precision precision, double flops,
            double bytes) {
  const auto iterations = static_cast<double>(state.iterations());
  const auto rate = benchmark::Counter::kIsRate;
  state.counters["GFLOP/s"] = benchmark::Counter(flops * iterations / 1e9, rate);
  state.counters["GB/s"] = benchmark::Counter(bytes * iterations / 1e9, rate);
  state.counters["of_peak"] =
      benchmark::Counter(flops * iterations / peak_flops_per_second(isa, precision), rate);
  state.counters["of_memory"] =
      benchmark::Counter(bytes * iterations / memory_read_bytes_per_second(), rate);
}

void gemm(benchmark::State& state, device::Isa isa, Precision precision) {
  const std::int64_t m = state.range(0);
  const std::int64_t n = state.range(1);
  const std::int64_t k = state.range(2);
  const PackedWeights weights = random_weights(n, k);
  const auto a = random_floats(static_cast<std::size_t>(m * k));
  std::vector<float> c(static_cast<std::size_t>(m * n));
  const kernels::GemmParams params{.m = m,
                                   .a = a.data(),
                                   .lda = k,
                                   .weights = &weights,
                                   .c = c.data(),
                                   .ldc = n,
                                   .precision = precision};
  const device::CpuStream stream{.workers = nullptr, .isa = isa};
  for (auto _ : state) {
    const Status status = kernels::launch_gemm(params, stream);
    benchmark::DoNotOptimize(status.is_ok());
    benchmark::ClobberMemory();
  }
  report(state, isa, precision, 2.0 * static_cast<double>(m * n * k),
         static_cast<double>(weights.num_bytes()));
}

void register_gemm(device::Isa isa) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    const std::string name =
        std::string("gemm/") + device::to_string(isa) + "/" + to_string(precision);
    auto* bench = benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { gemm(state, isa, precision); });
    bench->ArgNames({"m", "n", "k"});
    // Projections and LM head of a small model, then of larger ones.
    for (const std::int64_t m : {1, 4, 16, 64}) {
      bench->Args({m, 512, 256})->Args({m, 256, 128})->Args({m, 6144, 256});
    }
    for (const std::int64_t m : {1, 2, 4, 8, 16, 64, 256}) {
      bench->Args({m, 1024, 1024});
    }
    bench->Args({1, 4096, 4096})->Args({64, 4096, 4096});
  }
}

void register_all() {
  for (int isa = 0; isa <= static_cast<int>(device::detect_isa()); ++isa) {
    register_gemm(static_cast<device::Isa>(isa));
  }
}

}  // namespace
}  // namespace fastfd::bench

int main(int argc, char** argv) {
  using namespace fastfd;
  benchmark::Initialize(&argc, argv);
  const device::Isa isa = device::detect_isa();
  benchmark::AddCustomContext("isa", device::to_string(isa));
  benchmark::AddCustomContext("memory_read_GB/s",
                              std::to_string(bench::memory_read_bytes_per_second() / 1e9));
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    benchmark::AddCustomContext(std::string("peak_GFLOP/s_") + to_string(precision),
                                std::to_string(bench::peak_flops_per_second(isa, precision) / 1e9));
  }
  bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
