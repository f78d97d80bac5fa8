// Planning and committing one step for 1,024 running sequences. Median and 99th percentile are
// counters, in microseconds; the time column is the mean of both together.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/scheduler_driver.h"

namespace fastfd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

double percentile(std::vector<double>& values, double fraction) {
  const auto at = static_cast<std::size_t>(static_cast<double>(values.size() - 1) * fraction);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

/// Args: sequences, mean output tokens (10: a tenth of all sequences is replaced in every step),
/// attention servers, lanes.
void plan_and_commit(benchmark::State& state) {
  SchedulerLoad load;
  load.num_sequences = static_cast<std::uint32_t>(state.range(0));
  load.output_tokens = static_cast<std::uint32_t>(state.range(1));
  load.num_attention_servers = static_cast<std::uint32_t>(state.range(2));
  load.microbatches = static_cast<std::uint32_t>(state.range(3));
  SchedulerDriver driver(load);
  for (int i = 0; i < 100; ++i) {
    driver.step();
  }
  std::vector<double> plan_us;
  std::vector<double> commit_us;
  double num_tokens = 0;
  double num_opens = 0;
  for (auto _ : state) {
    double commit_time = 0;
    if (driver.must_commit()) {
      const auto results = driver.results_of_oldest_step();
      const auto begin = Clock::now();
      num_tokens += static_cast<double>(driver.commit(results));
      commit_time = micros(Clock::now() - begin);
      driver.replace_ended();
    }
    const auto begin = Clock::now();
    const auto plan = driver.plan();
    const double plan_time = micros(Clock::now() - begin);
    if (!plan) {
      state.SkipWithError("nothing to plan");
      break;
    }
    for (const auto& [rank, server] : plan->attention) {
      for (const AttentionLanePlan& lane : server.lanes) {
        num_opens += static_cast<double>(lane.opens.size());
      }
    }
    driver.take(*plan);
    plan_us.push_back(plan_time);
    commit_us.push_back(commit_time);
    state.SetIterationTime((plan_time + commit_time) * 1e-6);
  }
  if (plan_us.empty()) {
    return;
  }
  const auto steps = static_cast<double>(plan_us.size());
  state.counters["plan_p50_us"] = percentile(plan_us, 0.5);
  state.counters["plan_p99_us"] = percentile(plan_us, 0.99);
  state.counters["commit_p50_us"] = percentile(commit_us, 0.5);
  state.counters["tokens/step"] = num_tokens / steps;
  state.counters["opens/step"] = num_opens / steps;
}

BENCHMARK(plan_and_commit)
    ->ArgNames({"sequences", "output", "servers", "lanes"})
    ->Args({1024, 1000, 1, 2})  // steady decode
    ->Args({1024, 1000, 2, 2})
    ->Args({1024, 1000, 4, 4})
    ->Args({1024, 10, 1, 2})  // a tenth replaced in every step
    ->Args({1024, 10, 2, 2})
    ->Args({1024, 10, 4, 4})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fastfd::bench

BENCHMARK_MAIN();
