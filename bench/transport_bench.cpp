/// Round trip of one lane: dispatch of n rows to one FFN server and their combine back, beside the
/// floor: one core copying the same bytes through the same number of buffers, with nobody to wait
/// for. `x_floor` is median / floor: what flags, doorbells and a second core cost. Needs two free
/// cores: where the two sides share one, each waits for the other to be scheduled (twice spin_us a
/// round trip), and only `min_us` still shows the transport.
///
///   transport_bench --benchmark_filter=shm --benchmark_repetitions=5

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fastfd/transport/inproc.h"
#include "fastfd/transport/shm.h"

namespace fastfd::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxRows = 256;
constexpr std::uint32_t kNumLayers = 48;
constexpr std::uint32_t kRoutesPerRow = 4;
constexpr std::chrono::seconds kHang{60};

/// Every mode of this program: who answers, and how both sides wait.
enum class Kind { kInproc, kShm };

struct Traffic {
  WindowShape shape;
  std::uint32_t num_rows;
  std::size_t dispatch_bytes() const {
    return std::size_t{num_rows} * shape.hidden_dim * dtype_bytes(shape.dispatch_dtype);
  }
  std::size_t combine_bytes() const {
    return std::size_t{num_rows} * shape.hidden_dim * dtype_bytes(shape.combine_dtype);
  }
};

/// Hop number i of lane 0.
HopId hop_of(std::uint64_t i) {
  return {1, 1 + i / kNumLayers, static_cast<std::uint32_t>(i % kNumLayers), 0};
}

/// The FFN server: copies a result of the right size into the attention server's window.
void echo(FfnPort& port, const std::vector<std::byte>& result, std::size_t bytes_per_row) {
  for (std::uint64_t i = 0;; ++i) {
    const HopId hop = hop_of(i);
    for (;;) {
      const std::uint32_t seen = port.doorbell();
      if (port.dispatch_ready(hop, 1)) {
        break;
      }
      if (port.wait(seen, kHang) == WaitOutcome::kAborted) {
        return;
      }
    }
    const DispatchReader in = port.dispatch(0, hop);
    benchmark::DoNotOptimize(in.rows[0]);
    std::memcpy(port.combine_buffer(0, hop), result.data(), in.num_rows * bytes_per_row);
    port.send_combine(0, hop, in.num_rows);
  }
}

/// The other side: a thread, or with shm a process of its own.
class FfnServer {
 public:
  FfnServer(Kind kind, const Traffic& traffic, WaitPolicy policy) {
    const std::size_t row_bytes = traffic.combine_bytes() / traffic.num_rows;
    result_.assign(kMaxRows * row_bytes, std::byte{1});
    if (kind == Kind::kInproc) {
      const InprocFabric fabric(traffic.shape, 1, 1, policy);
      attention_ = fabric.attention_port(0);
      ffn_ = fabric.ffn_port(0);
      thread_ = std::thread([this, row_bytes] { echo(*ffn_, result_, row_bytes); });
      return;
    }
    ShmEndpoint here({Role::kAttention, 0, 1, traffic.shape, policy, ""});
    const std::string ffn_address = fmt::format("{}-ffn", here.address());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ShmEndpoint there({Role::kFfn, 0, 1, traffic.shape, policy, ffn_address});
      const auto port = there.connect_ffn(1, std::vector<PeerAddress>{{0, 1, ""}});
      if (port) {
        echo(**port, result_, row_bytes);
      }
      ::_exit(1);
    }
    const auto port = here.connect_attention(1, std::vector<PeerAddress>{{0, 1, ffn_address}});
    if (!port) {
      throw std::runtime_error(port.status().to_string());
    }
    attention_ = *port;
  }
  ~FfnServer() {
    if (thread_.joinable()) {
      ffn_->abort();
      thread_.join();
    }
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  FfnServer(const FfnServer&) = delete;
  FfnServer& operator=(const FfnServer&) = delete;

  AttentionPort& port() { return *attention_; }

 private:
  std::shared_ptr<AttentionPort> attention_;
  std::shared_ptr<FfnPort> ffn_;
  std::vector<std::byte> result_;
  std::thread thread_;
  pid_t pid_ = -1;
};

/// Median microseconds of copying what one round trip copies: activations into the dispatch window,
/// results into the combine window, results out of it.
double floor_us(const Traffic& traffic) {
  constexpr int kRuns = 201;
  // As many buffers as the windows alternate between.
  std::vector<std::byte> hidden(traffic.dispatch_bytes(), std::byte{2});
  std::vector<std::byte> dispatch(2 * traffic.dispatch_bytes());
  std::vector<std::byte> result(traffic.combine_bytes(), std::byte{1});
  std::vector<std::byte> combine(2 * traffic.combine_bytes());
  std::vector<std::byte> sum(traffic.combine_bytes());
  std::vector<double> samples;
  for (int run = 0; run < kRuns; ++run) {
    // Long enough for the clock also at one row.
    constexpr int kCopies = 16;
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) {
      const std::size_t buffer = i % 2;
      std::memcpy(&dispatch[buffer * hidden.size()], hidden.data(), hidden.size());
      std::memcpy(&combine[buffer * result.size()], result.data(), result.size());
      std::memcpy(sum.data(), &combine[buffer * result.size()], result.size());
      benchmark::ClobberMemory();
    }
    samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
                      kCopies);
  }
  std::nth_element(samples.begin(), samples.begin() + kRuns / 2, samples.end());
  return samples[kRuns / 2];
}

void round_trip(benchmark::State& state, Kind kind, DType combine_dtype) {
  Traffic traffic;
  traffic.num_rows = static_cast<std::uint32_t>(state.range(0));
  traffic.shape = {kMaxRows,         static_cast<std::uint32_t>(state.range(1)),
                   kRoutesPerRow,    kNumLayers,
                   DType::kBFloat16, combine_dtype};
  const WaitPolicy policy{static_cast<std::uint32_t>(state.range(2))};
  const double floor = floor_us(traffic);
  FfnServer server(kind, traffic, policy);
  AttentionPort& port = server.port();
  std::vector<std::byte> hidden(traffic.dispatch_bytes(), std::byte{2});
  std::vector<std::byte> sum(traffic.combine_bytes());
  std::vector<double> samples;
  samples.reserve(1U << 20);
  std::uint64_t i = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    const HopId hop = hop_of(i++);
    const DispatchWriter out = port.dispatch_buffer(0, hop);
    std::memcpy(out.rows, hidden.data(), hidden.size());
    std::uint32_t num_routes = 0;
    out.route_offsets[0] = 0;
    for (std::uint32_t row = 0; row < traffic.num_rows; ++row) {
      for (std::uint32_t route = 0; route < kRoutesPerRow; ++route, ++num_routes) {
        out.route_experts[num_routes] = route;
        out.route_weights[num_routes] = 0.25F;
      }
      out.route_offsets[row + 1] = num_routes;
    }
    port.send_dispatch(0, hop, traffic.num_rows, num_routes);
    if (port.wait_combine(hop, kHang) != WaitOutcome::kReady) {
      state.SkipWithError("no combine");
      break;
    }
    std::memcpy(sum.data(), port.combine_rows(0, hop), sum.size());
    benchmark::ClobberMemory();
    samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  if (samples.empty()) {
    return;
  }
  std::sort(samples.begin(), samples.end());
  const double median = samples[samples.size() / 2];
  state.counters["min_us"] = samples.front();
  state.counters["median_us"] = median;
  state.counters["p99_us"] = samples[samples.size() * 99 / 100];
  state.counters["floor_us"] = floor;
  state.counters["x_floor"] = median / floor;
  state.SetBytesProcessed(static_cast<std::int64_t>(
      state.iterations() * (traffic.dispatch_bytes() + 2 * traffic.combine_bytes())));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "hidden", "spin_us"});
  for (const std::int64_t spin_us : {50, 0}) {
    for (const std::int64_t hidden : {256, 4096}) {
      for (const std::int64_t rows : {1, 4, 16, 64, 256}) {
        bench->Args({rows, hidden, spin_us});
      }
    }
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(0.2);
}

// Combine dtype: what CPU clusters send by default (float32), and half the bytes (bf16).
BENCHMARK_CAPTURE(round_trip, inproc_f32, Kind::kInproc, DType::kFloat32)->Apply(sizes);
BENCHMARK_CAPTURE(round_trip, inproc_bf16, Kind::kInproc, DType::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(round_trip, shm_f32, Kind::kShm, DType::kFloat32)->Apply(sizes);
BENCHMARK_CAPTURE(round_trip, shm_bf16, Kind::kShm, DType::kBFloat16)->Apply(sizes);

}  // namespace
}  // namespace fastfd::transport

BENCHMARK_MAIN();
