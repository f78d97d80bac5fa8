// What a stream costs the gateway: N streaming clients at once on one gateway thread, tokens from
// an engine that has no model. Prints CPU time of the gateway thread an event, events a second of
// wall time and resident memory a stream.
//
//     gateway_bench [streams = 1000]
//
// Two loads: steps so far apart that every event is a write of its own (the dearer case), and steps
// faster than a busy machine can serve, where the tokens that are ready share a write.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fastfd/gateway/gateway_server.h"
#include "http/fake_engine.h"
#include "http/fake_text.h"
#include "http/stream_swarm.h"

namespace fastfd::gateway {
namespace {

using std::chrono::steady_clock;

constexpr int kRuns = 5;

struct Settings {
  const char* name;
  std::size_t num_streams;
  std::uint32_t num_tokens;  ///< a stream
  std::chrono::microseconds step;
};

struct Result {
  double us_per_event = 0.0;
  double events_per_second = 0.0;
  double request_us = 0.0;  ///< CPU time to accept, read and submit one request
  double kib_per_stream = 0.0;
};

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total_pages = 0;
  std::size_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

double seconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) * 1e-3;
}

/// The clients' own memory is not in the figure: they keep the last bytes of a stream only, and
/// their sockets are the kernel's.
Result run_once(const Settings& settings) {
  GatewayOptions options;
  options.port = 0;
  GatewayServer gateway(options);
  FakeEngine engine;
  engine.set_reply("a story of a fox ");
  engine.set_step_delay(settings.step);
  gateway.set_model(make_fake_model());
  gateway.set_engine(&engine);
  engine.pause();
  const std::string body =
      fmt::format(R"({{"model":"{}","messages":[{{"role":"user","content":"Tell me a story."}}],)"
                  R"("stream":true,"ignore_eos":true,"max_tokens":{}}})",
                  kFakeModelName, settings.num_tokens);

  const std::size_t resident_before = resident_bytes();
  const auto cpu_before = gateway.thread_cpu_time();
  StreamSwarm swarm(gateway.port(), settings.num_streams);
  swarm.send("/v1/chat/completions", [&body](std::size_t) { return body; });
  if (!engine.wait_running(settings.num_streams)) {
    throw std::runtime_error("the gateway did not take all requests within 20 s");
  }
  const auto cpu_ready = gateway.thread_cpu_time();
  engine.resume();
  const auto begin = steady_clock::now();
  std::size_t resident_peak = 0;
  std::thread reader([&swarm] { swarm.read_all(/*keep=*/false); });
  while (engine.num_running() > 0) {
    resident_peak = std::max(resident_peak, resident_bytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  reader.join();
  const double wall = seconds(steady_clock::now() - begin);
  const auto cpu_end = gateway.thread_cpu_time();
  gateway.drain(steady_clock::now());

  // A token is an event (the last one carries the finish reason); the role is one more.
  const auto num_events = static_cast<double>(settings.num_streams * (settings.num_tokens + 1));
  const auto num_streams = static_cast<double>(settings.num_streams);
  Result result;
  result.us_per_event = microseconds(cpu_end - cpu_ready) / num_events;
  result.events_per_second = num_events / wall;
  result.request_us = microseconds(cpu_ready - cpu_before) / num_streams;
  result.kib_per_stream =
      static_cast<double>(resident_peak - std::min(resident_peak, resident_before)) / num_streams /
      1024.0;
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void report(const char* name, const std::vector<Result>& results, double Result::*figure) {
  std::vector<double> values;
  for (const Result& result : results) {
    values.push_back(result.*figure);
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  fmt::print("{:<34} {:>10.2f} {:>10.2f} {:>10.2f}\n", name, median(values), *low, *high);
}

void measure(const Settings& settings) {
  std::vector<Result> results;
  for (int i = 0; i < kRuns; ++i) {
    results.push_back(run_once(settings));
  }
  fmt::print("{}: {} streams of {} tokens, a step every {} ms, {} runs\n", settings.name,
             settings.num_streams, settings.num_tokens, settings.step.count() / 1000, kRuns);
  fmt::print("{:<34} {:>10} {:>10} {:>10}\n", "", "median", "lowest", "highest");
  report("us of CPU an event (aim: 15)", results, &Result::us_per_event);
  report("us of CPU a request", results, &Result::request_us);
  report("events a second of wall time", results, &Result::events_per_second);
  // The first run's: later ones find memory that the allocator kept.
  fmt::print("{:<34} {:>10.2f}\n\n", "KiB resident a stream (first run)",
             results[0].kib_per_stream);
}

int run(int argc, char** argv) {
  const std::size_t num_streams = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1000;
  if (num_streams == 0) {
    throw std::invalid_argument("the number of streams must be at least 1");
  }
  measure({"paced", num_streams, 30, std::chrono::milliseconds(200)});
  measure({"saturated", num_streams, 200, std::chrono::milliseconds(10)});
  return 0;
}

}  // namespace
}  // namespace fastfd::gateway

int main(int argc, char** argv) {
  try {
    return fastfd::gateway::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gateway_bench: {}\n", error.what());
    return 1;
  }
}
