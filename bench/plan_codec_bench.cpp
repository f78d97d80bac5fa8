// What a step of 1,024 sequences costs on its way to the servers and back: planning and encoding
// together (aim: median under 300 us, with and without churn), and each direction of the codec
// alone. All messages of a step are counted: one plan for each of 2 attention and 2 FFN servers,
// one result for each attention server and lane.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/scheduler_driver.h"
#include "fastfd/control_plane/codec.h"

namespace fastfd::bench {
namespace {

using control_plane::Codec;
using control_plane::CoordinatorMessage;
using control_plane::ServerMessage;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kNumFfnServers = 2;

/// Average output of a sequence; every step replaces 1/tokens of all sequences.
constexpr std::int64_t kSteady = 100000;
constexpr std::int64_t kChurn10Percent = 10;

SchedulerLoad load_of(const benchmark::State& state) {
  SchedulerLoad load;
  load.output_tokens = static_cast<std::uint32_t>(state.range(0));
  return load;
}

std::vector<CoordinatorMessage> messages_of(StepPlan plan) {
  std::vector<CoordinatorMessage> messages;
  for (auto& [rank, attention_plan] : plan.attention) {
    messages.emplace_back(std::move(attention_plan));
  }
  messages.insert(messages.end(), kNumFfnServers, CoordinatorMessage(plan.ffn));
  return messages;
}

void report_percentiles(benchmark::State& state, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  state.counters["median_us"] = seconds[seconds.size() / 2] * 1e6;
  state.counters["p99_us"] = seconds[seconds.size() * 99 / 100] * 1e6;
}

/// Times `measured(step)` of every step; the rest of the step is untimed.
template <typename Measured>
void run_steps(benchmark::State& state, Measured measured) {
  SchedulerDriver driver(load_of(state));
  std::vector<double> seconds;
  for (auto _ : state) {
    if (driver.must_commit()) {
      driver.commit(driver.results_of_oldest_step());
      driver.replace_ended();
    }
    seconds.push_back(measured(driver));
    state.SetIterationTime(seconds.back());
  }
  report_percentiles(state, std::move(seconds));
}

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

StepPlan next_plan(SchedulerDriver& driver) {
  auto plan = driver.plan();
  if (!plan) {
    throw std::logic_error("the load left the scheduler without work");
  }
  return std::move(*plan);
}

void BM_PlanAndEncode(benchmark::State& state) {
  Codec codec;
  std::string bytes;
  std::size_t num_bytes = 0;
  run_steps(state, [&](SchedulerDriver& driver) {
    const auto began = Clock::now();
    StepPlan plan = next_plan(driver);
    double seconds = seconds_since(began);
    driver.take(plan);
    const auto resumed = Clock::now();
    for (const auto& message : messages_of(std::move(plan))) {
      codec.encode(message, &bytes);
      num_bytes += bytes.size();
    }
    return seconds + seconds_since(resumed);
  });
  state.counters["bytes_per_step"] =
      benchmark::Counter(static_cast<double>(num_bytes), benchmark::Counter::kAvgIterations);
}

void BM_EncodePlan(benchmark::State& state) {
  Codec codec;
  std::string bytes;
  run_steps(state, [&](SchedulerDriver& driver) {
    StepPlan plan = next_plan(driver);
    driver.take(plan);
    const auto messages = messages_of(std::move(plan));
    const auto began = Clock::now();
    for (const auto& message : messages) {
      codec.encode(message, &bytes);
    }
    return seconds_since(began);
  });
}

void BM_DecodePlan(benchmark::State& state) {
  Codec codec;
  run_steps(state, [&](SchedulerDriver& driver) {
    StepPlan plan = next_plan(driver);
    driver.take(plan);
    std::vector<std::string> encoded;
    for (const auto& message : messages_of(std::move(plan))) {
      codec.encode(message, &encoded.emplace_back());
    }
    const auto began = Clock::now();
    for (const auto& bytes : encoded) {
      auto decoded = codec.decode_coordinator_message(bytes);
      benchmark::DoNotOptimize(decoded);
    }
    return seconds_since(began);
  });
}

/// The results of one step: encoded by the servers, decoded by the coordinator.
void BM_Results(benchmark::State& state) {
  const bool decode = state.range(1) != 0;
  Codec codec;
  std::string bytes;
  SchedulerDriver driver(load_of(state));
  std::vector<double> seconds;
  for (auto _ : state) {
    if (driver.must_commit()) {
      const auto results = driver.results_of_oldest_step();
      double elapsed = 0;
      for (const auto& result : results) {
        const ServerMessage message(result);
        auto began = Clock::now();
        codec.encode(message, &bytes);
        if (decode) {
          began = Clock::now();
          auto decoded = codec.decode_server_message(bytes);
          benchmark::DoNotOptimize(decoded);
        }
        elapsed += seconds_since(began);
      }
      driver.commit(results);
      driver.replace_ended();
      seconds.push_back(elapsed);
      state.SetIterationTime(elapsed);
    } else {
      state.SetIterationTime(0);
    }
    driver.take(next_plan(driver));
  }
  report_percentiles(state, std::move(seconds));
}

/// What a lane barrier or a new epoch sends: every decode row of the cluster in full.
void BM_FullRowLists(benchmark::State& state) {
  AttentionStepPlan plan;
  plan.step = 123456;
  plan.lanes.resize(2);
  for (LaneId lane = 0; lane < 2; ++lane) {
    plan.lanes[lane].lane = lane;
    auto& rows = plan.lanes[lane].rows.emplace();
    for (std::uint32_t i = 0; i < 512; ++i) {
      rows.push_back({2 * i + lane, i % 7, 1000 + i, static_cast<TokenId>(i * 97)});
    }
  }
  const CoordinatorMessage message(plan);
  Codec codec;
  std::string bytes;
  for (auto _ : state) {
    codec.encode(message, &bytes);
    auto decoded = codec.decode_coordinator_message(bytes);
    benchmark::DoNotOptimize(decoded);
  }
}

BENCHMARK(BM_PlanAndEncode)
    ->ArgName("output_tokens")
    ->Arg(kSteady)
    ->Arg(kChurn10Percent)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EncodePlan)
    ->ArgName("output_tokens")
    ->Arg(kSteady)
    ->Arg(kChurn10Percent)
    ->UseManualTime()
    ->Iterations(2000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_DecodePlan)
    ->ArgName("output_tokens")
    ->Arg(kSteady)
    ->Arg(kChurn10Percent)
    ->UseManualTime()
    ->Iterations(2000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Results)
    ->ArgNames({"output_tokens", "decode"})
    ->Args({kSteady, 0})
    ->Args({kSteady, 1})
    ->UseManualTime()
    ->Iterations(2000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FullRowLists)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fastfd::bench

BENCHMARK_MAIN();
