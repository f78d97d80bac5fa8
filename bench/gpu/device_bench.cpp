// Latencies that the GPU path is made of: flags between streams, SM partitions and processes, graph
// launches, the abort word. Run it with and without scripts/with-mps. Usage: device_bench
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "fastfd/device/sm_partition.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_kernels.h"

namespace fastfd::bench {
namespace {

using device::CudaDevice;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::DeviceGraph;
using device::DeviceStream;
using device::PinnedBuffer;
using layout::AbortState;
using std::chrono::steady_clock;

constexpr std::uint64_t kBoundNs = 10'000'000'000;
constexpr std::size_t kNumSamples = 21;

void require(const Status& status) {
  if (!status) {
    throw std::runtime_error(status.to_string());
  }
}

/// One line: median, smallest and largest of a few samples.
void print(const std::string& what, std::vector<double> us, const std::string& note = "") {
  std::sort(us.begin(), us.end());
  fmt::print("{:<52} {:>10.3f} {:>10.3f} {:>10.3f}  {}\n", what, us[us.size() / 2], us.front(),
             us.back(), note);
}

std::vector<double> sample(const std::function<double()>& measure,
                           std::size_t num_samples = kNumSamples) {
  measure();  // warm
  std::vector<double> result;
  for (std::size_t i = 0; i < num_samples; ++i) {
    result.push_back(measure());
  }
  return result;
}

double us_since(steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(steady_clock::now() - start).count();
}

class Bench {
 public:
  explicit Bench(const CudaDevice& gpu)
      : gpu_(gpu), stream_(gpu), state_(gpu, sizeof(AbortState)), words_(gpu, 4096) {
    require(device::fill_async(state_.data(), 0, state_.num_bytes(), stream_.handle()));
    require(stream_.synchronize());
  }

  void run(testing::PeerProcess& peer) {
    fmt::print("{}, MPS {}\n{:<52} {:>10} {:>10} {:>10}\n", gpu_.to_string(),
               gpu_.uses_mps() ? "on" : "off", "[us]", "median", "least", "most");
    const DeviceStream other(gpu_);
    ping_pong("flag round trip, two streams", stream_, other);
    const std::vector<double> halves{0.5, 0.5};
    const auto first = device::SmPartition::create(gpu_, halves, 0);
    const auto second = device::SmPartition::create(gpu_, halves, 1);
    ping_pong("flag round trip, two SM partitions", first.make_stream(), second.make_stream());
    processes(peer);
    graphs("whole GPU", stream_);
    graphs("SM partition", first.make_stream());
    abort_word();
    copies();
  }

 private:
  testing::WaitLimits limits() const {
    return {words_.as<std::uint32_t>(), state_.as<AbortState>(), kBoundNs};
  }

  void ping_pong(const std::string& what, const DeviceStream& a, const DeviceStream& b) {
    constexpr std::uint32_t kRounds = 2000;
    const DeviceBuffer flags(gpu_, 256);
    require(device::fill_async(flags.data(), 0, flags.num_bytes(), stream_.handle()));
    require(stream_.synchronize());
    auto* to = flags.as<std::uint64_t>();
    auto* from = to + 16;
    auto* elapsed = words_.as<std::uint64_t>() + 64;
    std::uint64_t next = 1;
    print(what, sample([&] {
            require(testing::launch_ping_pong(
                {from, to, next, kRounds, true, limits(), elapsed + 1}, b.handle()));
            require(testing::launch_ping_pong({to, from, next, kRounds, false, limits(), elapsed},
                                              a.handle()));
            require(a.synchronize());
            require(b.synchronize());
            next += kRounds;
            if (elapsed[0] == 0) {
              throw std::runtime_error(what + ": gave up");
            }
            return static_cast<double>(elapsed[0]) / kRounds / 1000.0;
          }));
  }

  void processes(testing::PeerProcess& peer) {
    const std::uint32_t num_rounds = gpu_.uses_mps() ? 2000 : 20;
    auto mapped =
        device::DeviceWindow::map_peer(gpu_, peer.window_fd(), testing::ProbeWindow::bytes());
    require(mapped.status());
    const testing::ProbeWindow window{mapped->data()};
    auto* elapsed = words_.as<std::uint64_t>() + 64;
    std::uint64_t next = 1;
    const auto measure = [&] {
      peer.send({testing::PeerTask::kPingPong, 0, next, num_rounds});
      require(testing::launch_ping_pong(
          {window.to_peer(), window.from_peer(), next, num_rounds, false, limits(), elapsed},
          stream_.handle()));
      require(stream_.synchronize());
      const auto answer = peer.receive();
      if (answer.is_ok == 0 || elapsed[0] == 0) {
        throw std::runtime_error(fmt::format("the processes' round trip: {}", answer.message));
      }
      next += num_rounds;
      return static_cast<double>(elapsed[0]) / num_rounds / 1000.0;
    };
    print(
        fmt::format("flag round trip, two processes, {} MPS", gpu_.uses_mps() ? "with" : "without"),
        sample(measure, gpu_.uses_mps() ? kNumSamples : 5));
  }

  void graphs(const std::string& where, const DeviceStream& stream) {
    constexpr int kNumKernels = 100;
    const DeviceBuffer counter(gpu_, 4);
    const auto count = [&](int num_kernels) {
      auto graph = DeviceGraph::capture(stream, [&] {
        Status status;
        for (int i = 0; status && i < num_kernels; ++i) {
          status = testing::launch_count({state_.as<AbortState>(), counter.as<std::uint32_t>()},
                                         stream.handle());
        }
        return status;
      });
      require(graph.status());
      return std::move(*graph);
    };
    const auto one = count(1);
    const auto many = count(kNumKernels);
    print("graph of one kernel, launch to idle, " + where, sample([&] {
            const auto start = steady_clock::now();
            require(one.launch(stream.handle()));
            require(stream.synchronize());
            return us_since(start);
          }));
    print("graph launch call alone, 100 kernels, " + where, sample([&] {
            const auto start = steady_clock::now();
            require(many.launch(stream.handle()));
            const double us = us_since(start);
            require(stream.synchronize());
            return us;
          }));
    const DeviceEvent start(gpu_, {.timing = true});
    const DeviceEvent end(gpu_, {.timing = true});
    print("each of 100 dependent kernels of a graph, " + where, sample([&] {
            require(start.record(stream.handle()));
            require(many.launch(stream.handle()));
            require(end.record(stream.handle()));
            require(end.synchronize());
            return static_cast<double>(*end.elapsed_ms(start)) * 1000.0 / kNumKernels;
          }));
  }

  void abort_word() {
    const DeviceBuffer state(gpu_, sizeof(AbortState));
    const DeviceBuffer flag(gpu_, 8);
    auto* started = words_.as<std::uint32_t>() + 256;
    auto* word = words_.as<std::uint32_t>() + 288;
    print("abort word raised to idle stream", sample([&] {
            require(device::fill_async(state.data(), 0, state.num_bytes(), stream_.handle()));
            require(device::fill_async(flag.data(), 0, flag.num_bytes(), stream_.handle()));
            std::atomic_ref<std::uint32_t>(*started).store(0);
            std::atomic_ref<std::uint32_t>(*word).store(0);
            require(testing::launch_wait(
                {started, flag.as<std::uint64_t>(), 1, {word, state.as<AbortState>(), kBoundNs}},
                stream_.handle()));
            while (std::atomic_ref<std::uint32_t>(*started).load() == 0) {
            }
            const auto raised = steady_clock::now();
            std::atomic_ref<std::uint32_t>(*word).store(1);
            require(stream_.synchronize());
            return us_since(raised);
          }));
  }

  /// The ceiling that other programs' floors refer to.
  void copies() {
    constexpr std::size_t kBytes = std::size_t{2} << 30;
    const DeviceBuffer from(gpu_, kBytes);
    const DeviceBuffer to(gpu_, kBytes);
    require(device::fill_async(from.data(), 0x5a, kBytes, stream_.handle()));
    const DeviceEvent start(gpu_, {.timing = true});
    const DeviceEvent end(gpu_, {.timing = true});
    auto us = sample([&] {
      require(start.record(stream_.handle()));
      require(device::copy_async(to.data(), from.data(), kBytes, stream_.handle()));
      require(end.record(stream_.handle()));
      require(end.synchronize());
      return static_cast<double>(*end.elapsed_ms(start)) * 1000.0;
    });
    std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
    const double tb_per_s = 2.0 * static_cast<double>(kBytes) / us[us.size() / 2] / 1e6;
    print("copy of 2 GiB on the GPU", us, fmt::format("{:.2f} TB/s read and written", tb_per_s));
  }

  CudaDevice gpu_;
  DeviceStream stream_;
  DeviceBuffer state_;
  PinnedBuffer words_;
};

}  // namespace
}  // namespace fastfd::bench

int main(int argc, char** argv) {
  fastfd::device::set_cuda_environment();
  if (const auto status = fastfd::testing::run_as_peer(argc, argv)) {
    return *status;
  }
  try {
    fastfd::testing::PeerProcess peer("bench");
    fastfd::bench::Bench(fastfd::device::CudaDevice::open(0)).run(peer);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "device_bench: {}\n", error.what());
    return 1;
  }
}
