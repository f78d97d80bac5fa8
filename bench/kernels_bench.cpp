/// Speed of the CPU operators on one thread. Counters: GFLOP/s and GB/s reached, and their ratios
/// to what this machine's core can do (`of_peak`) and reads from memory (`of_memory`), measured
/// first. Weights that fit a cache can exceed the memory ratio.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/op.h"
#include "kernels/expert_ffn/op.h"
#include "kernels/gated_delta_net/op.h"
#include "kernels/gemm/op.h"
#include "kernels/sampling/op.h"
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

/// `batch` sequences with `context` tokens of which the last `rows` are new. Each has pages of its
/// own, in scattered order.
void attention(benchmark::State& state, device::Isa isa) {
  const std::int64_t batch = state.range(0);
  const std::int64_t rows = state.range(1);
  const std::int64_t context = state.range(2);
  const std::int64_t num_q_heads = state.range(3);
  const std::int64_t head_dim = state.range(4);
  constexpr std::int64_t kKvHeads = 2;
  constexpr std::int64_t kPageSize = 16;
  const std::int64_t pages_each = (context + kPageSize - 1) / kPageSize;
  std::vector<PageId> pages(static_cast<std::size_t>(batch * pages_each));
  std::iota(pages.begin(), pages.end(), PageId{0});
  std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
  const auto pool = random_bf16(pages.size() * kPageSize * kKvHeads * head_dim, 1.0F);
  device::HostBuffer keys(pool.size() * sizeof(bf16));  // whole pages, as servers allocate it
  device::HostBuffer values(pool.size() * sizeof(bf16));
  std::copy(pool.begin(), pool.end(), keys.as<bf16>());
  std::copy(pool.begin(), pool.end(), values.as<bf16>());
  const auto qkv = random_floats(
      static_cast<std::size_t>(batch * rows * (num_q_heads + 2 * kKvHeads) * head_dim));
  std::vector<float> out(static_cast<std::size_t>(batch * rows * num_q_heads * head_dim));
  std::vector<kernels::AttentionSpan> spans;
  for (std::int64_t i = 0; i < batch; ++i) {
    spans.push_back({.first_row = i * rows,
                     .num_rows = rows,
                     .start_position = context - rows,
                     .pages = pages.data() + i * pages_each});
  }
  const kernels::PagedAttentionParams params{
      .num_q_heads = num_q_heads,
      .qkv = qkv.data(),
      .pool = {.keys = keys.data(),
               .values = values.data(),
               .dtype = DType::kBFloat16,
               .num_pages = static_cast<std::int64_t>(pages.size()),
               .page_size = kPageSize,
               .num_kv_heads = kKvHeads,
               .head_dim = head_dim},
      .spans = spans,
      .out = out.data(),
      .scale = 0.125F};
  const device::CpuStream stream{.workers = nullptr, .isa = isa};
  for (auto _ : state) {
    const Status status = kernels::launch_paged_attention(params, stream);
    benchmark::DoNotOptimize(status.is_ok());
    benchmark::ClobberMemory();
  }
  const double seen = static_cast<double>(batch * rows) *
                      (static_cast<double>(context) - 0.5 * static_cast<double>(rows - 1));
  report(state, isa, Precision::kFloat32, 4.0 * seen * static_cast<double>(num_q_heads * head_dim),
         static_cast<double>(batch * context * 4 * kKvHeads * head_dim));
}

void register_attention(device::Isa isa) {
  const std::string name = std::string("attention/") + device::to_string(isa);
  auto* bench = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { attention(state, isa); });
  bench->ArgNames({"batch", "rows", "context", "q_heads", "head_dim"});
  for (const std::int64_t context : {256, 1024, 2048}) {
    bench->Args({32, 1, context, 4, 64})->Args({32, 1, context, 16, 128});
  }
  bench->Args({1, 1, 256, 4, 64})->Args({1, 256, 256, 4, 64})->Args({1, 256, 2048, 4, 64});
  bench->Args({1, 256, 2048, 16, 128});
}

/// `batch` sequences with `rows` new tokens each, from the fused projection to the gated norm, in
/// the dimensions of Qwen3.5-35B-A3B's layers. Bytes: the recurrent states, read and written.
void gated_delta_net(benchmark::State& state, device::Isa isa) {
  const std::int64_t batch = state.range(0);
  const std::int64_t rows = state.range(1);
  const kernels::GatedDeltaNetShape shape{
      .num_k_heads = 16, .num_v_heads = 32, .k_head_dim = 128, .v_head_dim = 128};
  const auto source = random_floats(static_cast<std::size_t>(batch * rows * shape.row_dim()));
  auto projected = source;
  const auto conv_weight =
      random_floats(static_cast<std::size_t>(shape.conv_kernel * shape.conv_dim()), 0.5F);
  const auto vectors = random_floats(128);
  device::HostBuffer conv_states(static_cast<std::size_t>(batch * shape.conv_state_floats()) *
                                 sizeof(float));
  device::HostBuffer recurrent_states(
      static_cast<std::size_t>(batch * shape.recurrent_state_floats()) * sizeof(float));
  std::vector<float> out(static_cast<std::size_t>(batch * rows * shape.value_dim()));
  std::vector<kernels::GatedDeltaNetSpan> spans;
  for (std::int64_t i = 0; i < batch; ++i) {
    spans.push_back(
        {.first_row = i * rows,
         .num_rows = rows,
         .conv_state = conv_states.as<float>() + i * shape.conv_state_floats(),
         .recurrent_state = recurrent_states.as<float>() + i * shape.recurrent_state_floats()});
  }
  const kernels::GatedDeltaNetParams params{.shape = shape,
                                            .projected = projected.data(),
                                            .conv_weight = conv_weight.data(),
                                            .a_log = vectors.data(),
                                            .dt_bias = vectors.data(),
                                            .norm_weight = vectors.data(),
                                            .spans = spans,
                                            .out = out.data()};
  const device::CpuStream stream{.workers = nullptr, .isa = isa};
  for (auto _ : state) {
    std::copy(source.begin(), source.end(), projected.begin());
    const Status status = kernels::launch_gated_delta_net(params, stream);
    benchmark::DoNotOptimize(status.is_ok());
    benchmark::ClobberMemory();
  }
  const auto num_rows = static_cast<double>(batch * rows);
  const auto state_floats = static_cast<double>(shape.recurrent_state_floats());
  report(state, isa, Precision::kFloat32, 7.0 * num_rows * state_floats,
         8.0 * static_cast<double>(batch) * state_floats);
}

void register_gated_delta_net(device::Isa isa) {
  const std::string name = std::string("gated_delta_net/") + device::to_string(isa);
  auto* bench = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { gated_delta_net(state, isa); });
  bench->ArgNames({"batch", "rows"});
  bench->Args({1, 1})->Args({32, 1})->Args({1, 64})->Args({1, 256});
}

/// Every token takes `top_k` experts of `num_experts`, spread evenly.
void expert_ffn(benchmark::State& state, device::Isa isa, Precision precision) {
  const std::int64_t num_tokens = state.range(0);
  const std::int64_t num_experts = state.range(1);
  const std::int64_t top_k = state.range(2);
  const std::int64_t hidden_dim = state.range(3);
  const std::int64_t intermediate_dim = state.range(4);
  const auto matrix = random_bf16(static_cast<std::size_t>(hidden_dim * intermediate_dim), 0.05F);
  std::vector<kernels::ExpertWeights> experts;
  for (std::int64_t i = 0; i < num_experts; ++i) {
    experts.push_back(kernels::ExpertWeights::pack(matrix.data(), matrix.data(), matrix.data(),
                                                   hidden_dim, intermediate_dim));
  }
  const auto tokens = random_bf16(static_cast<std::size_t>(num_tokens * hidden_dim), 1.0F);
  std::vector<float> out(static_cast<std::size_t>(num_tokens * hidden_dim));
  std::vector<const void*> token_rows;
  std::vector<void*> out_rows;
  std::vector<std::uint32_t> offsets = {0};
  std::vector<std::uint32_t> route_experts;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    token_rows.push_back(tokens.data() + token * hidden_dim);
    out_rows.push_back(out.data() + token * hidden_dim);
    for (std::int64_t i = 0; i < top_k; ++i) {
      route_experts.push_back(static_cast<std::uint32_t>((token * top_k + i) % num_experts));
    }
    offsets.push_back(static_cast<std::uint32_t>(route_experts.size()));
  }
  const std::vector<float> weights(route_experts.size(), 0.25F);
  const kernels::ExpertFfnParams params{.num_tokens = num_tokens,
                                        .hidden_dim = hidden_dim,
                                        .intermediate_dim = intermediate_dim,
                                        .token_rows = token_rows.data(),
                                        .token_dtype = DType::kBFloat16,
                                        .route_offsets = offsets.data(),
                                        .route_experts = route_experts.data(),
                                        .route_weights = weights.data(),
                                        .experts = experts,
                                        .out_rows = out_rows.data(),
                                        .precision = precision};
  kernels::ExpertFfnScratch scratch;
  const device::CpuStream stream{.workers = nullptr, .isa = isa};
  for (auto _ : state) {
    const Status status = kernels::launch_expert_ffn(params, scratch, stream);
    benchmark::DoNotOptimize(status.is_ok());
    benchmark::ClobberMemory();
  }
  const auto num_routes = static_cast<double>(num_tokens * top_k);
  const double used_experts = std::min(num_routes, static_cast<double>(num_experts));
  const auto expert_size = static_cast<double>(3 * hidden_dim * intermediate_dim);
  report(state, isa, precision, 2.0 * num_routes * expert_size, 2.0 * used_experts * expert_size);
}

void register_expert_ffn(device::Isa isa) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    const std::string name =
        std::string("expert_ffn/") + device::to_string(isa) + "/" + to_string(precision);
    auto* bench = benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { expert_ffn(state, isa, precision); });
    bench->ArgNames({"tokens", "experts", "top_k", "hidden", "intermediate"});
    for (const std::int64_t tokens : {1, 8, 32, 64, 256}) {
      bench->Args({tokens, 16, 4, 256, 128});
    }
    bench->Args({1, 32, 8, 2048, 768})->Args({64, 32, 8, 2048, 768});
  }
}

/// Time of one row; `kind` is greedy, temperature, top_p or top_k, with or without top logprobs.
void sampling(benchmark::State& state, const SamplingParams& params) {
  const std::int64_t vocab_size = state.range(0);
  const auto logits = random_floats(static_cast<std::size_t>(vocab_size), 3.0F);
  kernels::SamplingRow row{.logits = logits.data(), .params = &params};
  kernels::SamplingOutput output;
  const device::CpuStream stream{.workers = nullptr, .isa = device::detect_isa()};
  for (auto _ : state) {
    ++row.position;
    const Status status = kernels::launch_sampling({&row, 1}, vocab_size, {&output, 1}, stream);
    benchmark::DoNotOptimize(status.is_ok());
    benchmark::DoNotOptimize(output.token);
  }
}

void register_sampling() {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  SamplingParams top_logprobs = greedy;
  top_logprobs.num_logprobs = 5;
  SamplingParams temperature;
  SamplingParams top_p;
  top_p.top_p = 0.9F;
  SamplingParams top_k;
  top_k.top_k = 50;
  for (const auto& [name, params] : {std::pair<std::string, SamplingParams>{"greedy", greedy},
                                     {"greedy_top5_logprobs", top_logprobs},
                                     {"temperature", temperature},
                                     {"top_p", top_p},
                                     {"top_k", top_k}}) {
    benchmark::RegisterBenchmark(
        ("sampling/" + name).c_str(),
        [params = params](benchmark::State& state) { sampling(state, params); })
        ->ArgName("vocab")
        ->Arg(6144)
        ->Arg(151936);
  }
}

void register_all() {
  for (int i = 0; i <= static_cast<int>(device::detect_isa()); ++i) {
    const auto isa = static_cast<device::Isa>(i);
    register_gemm(isa);
    register_expert_ffn(isa);
    register_attention(isa);
    register_gated_delta_net(isa);
  }
  register_sampling();
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
