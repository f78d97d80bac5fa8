/// Times the data-plane kernels of one (layer, lane): dispatch, index, combine send and receive,
/// and the chain of all that a layer adds to its experts' time. All windows are in one GPU's
/// memory, so this is what the kernels cost without a wire. Every call of a graph has its own
/// router weights, which come from memory as they do in a model.
///
///   data_plane_gpu_bench [quick]

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/gpu/timing.cuh"
#include "fastfd/core/expert_placement.h"
#include "kernels/combine/op_cuda.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::bench {
namespace {

using namespace kernels::cuda;  // NOLINT(google-build-using-namespace)

constexpr std::uint32_t kTopK = 8;
constexpr int kCalls = 24;  // a graph
constexpr layout::LaneHop kHop{/*lane=*/0, /*layer=*/3, /*num_layers=*/48};

__device__ float random_value(std::uint64_t index, std::uint32_t seed) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ULL + seed;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>((x ^ (x >> 31)) >> 40) / 8388608.0F - 1.0F;
}

__global__ void fill_kernel(float* values, std::size_t count, float scale, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    values[i] = scale * random_value(i, seed);
  }
}

__global__ void fill_kernel(bf16* values, std::size_t count, float scale, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    values[i].bits =
        static_cast<std::uint16_t>(__float_as_uint(scale * random_value(i, seed)) >> 16);
  }
}

/// Zeroed device memory; fill() makes it random.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) {
    require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    require(cudaMemset(data_, 0, count * sizeof(T)), "cudaMemset");
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    require(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  void fill(float scale, std::uint32_t seed) {
    fill_kernel<<<512, 256>>>(data_, count_, scale, seed);
    require(cudaGetLastError(), "fill");
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

struct Shape {
  std::uint32_t hidden_dim;
  std::uint32_t num_experts;
  std::uint32_t num_servers;
  std::uint32_t num_rows;
  DType dtype;
};

std::vector<ExpertPlacement::Target> placement_of(const Shape& shape) {
  const auto placement = ExpertPlacement::contiguous(shape.num_experts, shape.num_servers, 1);
  std::vector<ExpertPlacement::Target> targets;
  for (std::uint32_t expert = 0; expert < shape.num_experts; ++expert) {
    targets.push_back(placement.target(expert, 0));
  }
  return targets;
}

layout::LaneControl control_of(const Shape& shape) {
  layout::LaneControl control;
  control.step = 9;
  control.epoch = 1;
  control.num_rows = shape.num_rows;
  control.participants = 1;
  return control;
}

/// One attention server and the FFN servers it sends to; of those, number 0 is timed.
class Bench {
 public:
  explicit Bench(const Shape& s)
      : shape_(s),
        row_{s.hidden_dim, s.dtype},
        dispatch_layout_(layout::DispatchLayout::make({s.num_rows, row_.row_bytes(), kTopK})),
        combine_layout_(layout::CombineLayout::make({s.num_rows, s.hidden_dim * 2, 0})),
        num_local_((s.num_experts + s.num_servers - 1) / s.num_servers),
        control_(std::vector<layout::LaneControl>{control_of(s)}),
        targets_(placement_of(s)),
        residual_(std::size_t{s.num_rows} * s.hidden_dim),
        norm_(s.hidden_dim),
        y_(std::size_t{s.num_rows} * s.hidden_dim),
        row_index_(std::size_t{s.num_servers} * s.num_rows),
        sent_rows_(s.num_servers),
        partial_(router_scratch_floats(s.num_rows, s.num_experts, s.hidden_dim)),
        expert_begin_(num_local_ + 1),
        route_tokens_(max_routes()),
        route_weights_(max_routes()),
        token_route_begin_(s.num_rows + 1),
        token_routes_(max_routes()),
        token_rows_(s.num_rows),
        token_sources_(s.num_rows),
        outputs_(max_routes() * s.hidden_dim) {
    residual_.fill(1.0F, 1);
    norm_.fill(1.0F, 2);
    outputs_.fill(1.0F, 3);
    for (int i = 0; i < kCalls; ++i) {
      routers_.push_back(std::make_unique<Buffer<bf16>>(std::size_t{s.num_experts} * s.hidden_dim));
      routers_.back()->fill(1.0F, 100 + static_cast<std::uint32_t>(i));
    }
    std::vector<std::byte*> dispatch;
    std::vector<std::byte*> combine;
    for (std::uint32_t server = 0; server < s.num_servers; ++server) {
      windows_.push_back(std::make_unique<Buffer<std::byte>>(dispatch_layout_.bytes()));
      dispatch.push_back(windows_.back()->data());
      windows_.push_back(std::make_unique<Buffer<std::byte>>(combine_layout_.bytes()));
      combine.push_back(windows_.back()->data());
    }
    dispatch_windows_ = std::make_unique<Buffer<std::byte*>>(dispatch);
    combine_windows_ = std::make_unique<Buffer<std::byte*>>(combine);
    require(cudaMallocHost(&abort_word_, sizeof(*abort_word_)), "cudaMallocHost");
    *abort_word_ = 0;
  }
  ~Bench() { cudaFreeHost(abort_word_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void dispatch(int call, cudaStream_t stream) {
    require(launch_dispatch({.control = control_.data(),
                             .hop = kHop,
                             .max_rows = shape_.num_rows,
                             .hidden_dim = shape_.hidden_dim,
                             .residual = residual_.data(),
                             .norm = {.values = norm_.data()},
                             .router = {.num_experts = shape_.num_experts,
                                        .top_k = kTopK,
                                        .weights = routers_[call]->data()},
                             .placement = targets_.data(),
                             .windows = dispatch_windows_->data(),
                             .num_servers = shape_.num_servers,
                             .window = dispatch_layout_,
                             .row = row_,
                             .row_index = row_index_.data(),
                             .sent_rows = sent_rows_.data(),
                             .partial_logits = partial_.data(),
                             .counters = counters_.data(),
                             .abort = abort_.data()},
                            stream));
  }

  void wait(bool for_combine, cudaStream_t stream) {
    require(
        launch_wait({.control = control_.data(),
                     .hop = kHop,
                     .windows = for_combine ? combine_windows_->data() : dispatch_windows_->data(),
                     .num_peers = 1,
                     .grid = for_combine ? combine_layout_.grid : dispatch_layout_.grid,
                     .participants_only = !for_combine,
                     .timeout_ns = timeout_ns_.data(),
                     .abort_word = abort_word_,
                     .ready = ready_.data(),
                     .abort = abort_.data()},
                    stream));
  }

  void index(cudaStream_t stream) {
    require(launch_index({.control = control_.data(),
                          .hop = kHop,
                          .ready = ready_.data(),
                          .windows = dispatch_windows_->data(),
                          .num_peers = 1,
                          .window = dispatch_layout_,
                          .num_experts = num_local_,
                          .max_tokens = shape_.num_rows,
                          .max_routes = static_cast<std::uint32_t>(max_routes()),
                          .tables = {.expert_begin = expert_begin_.data(),
                                     .route_tokens = route_tokens_.data(),
                                     .route_weights = route_weights_.data(),
                                     .num_tokens = num_tokens_.data(),
                                     .token_route_begin = token_route_begin_.data(),
                                     .token_routes = token_routes_.data(),
                                     .token_rows = token_rows_.data(),
                                     .token_sources = token_sources_.data(),
                                     .peer_rows = peer_rows_.data()},
                          .abort = abort_.data()},
                         stream));
  }

  void combine_send(cudaStream_t stream) {
    require(launch_combine_send({.control = control_.data(),
                                 .hop = kHop,
                                 .max_tokens = shape_.num_rows,
                                 .hidden_dim = shape_.hidden_dim,
                                 .routes = {token_route_begin_.data(), token_routes_.data()},
                                 .route_weights = route_weights_.data(),
                                 .num_tokens = num_tokens_.data(),
                                 .token_sources = token_sources_.data(),
                                 .peer_rows = peer_rows_.data(),
                                 .route_outputs = outputs_.data(),
                                 .windows = combine_windows_->data(),
                                 .num_peers = 1,
                                 .window = combine_layout_,
                                 .ctas_done = ctas_done_.data(),
                                 .abort = abort_.data()},
                                stream));
  }

  void combine_receive(cudaStream_t stream) {
    require(launch_combine_receive({.control = control_.data(),
                                    .hop = kHop,
                                    .max_rows = shape_.num_rows,
                                    .hidden_dim = shape_.hidden_dim,
                                    .residual = residual_.data(),
                                    .windows = combine_windows_->data(),
                                    .num_servers = shape_.num_servers,
                                    .window = combine_layout_,
                                    .row_index = row_index_.data(),
                                    .norm = {.values = norm_.data()},
                                    .y = y_.data(),
                                    .abort = abort_.data()},
                                   stream));
  }

  /// Of the last dispatch: rows of all servers, and the timed server's rows and routes.
  void read_counts() {
    require(cudaDeviceSynchronize(), "kernels");
    std::vector<std::uint32_t> sent(shape_.num_servers);
    layout::AbortState abort;
    require(cudaMemcpy(sent.data(), sent_rows_.data(), sent.size() * 4, cudaMemcpyDeviceToHost),
            "copy");
    require(cudaMemcpy(&num_routes, expert_begin_.data() + num_local_, 4, cudaMemcpyDeviceToHost),
            "copy");
    require(cudaMemcpy(&abort, abort_.data(), sizeof(abort), cudaMemcpyDeviceToHost), "copy");
    if (abort.aborted != 0) {
      require(Status(StatusCode::kAborted, "the kernels gave up"));
    }
    rows_sent = 0;
    for (const std::uint32_t rows : sent) {
      rows_sent += rows;
    }
    rows_here = sent[0];
  }

  std::uint32_t rows_sent = 0;
  std::uint32_t rows_here = 0;
  std::uint32_t num_routes = 0;

  double row_bytes() const { return row_.row_bytes(); }

 private:
  std::size_t max_routes() const { return std::size_t{shape_.num_rows} * kTopK; }

  Shape shape_;
  layout::RowLayout row_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  std::uint32_t num_local_;
  Buffer<layout::LaneControl> control_;
  Buffer<ExpertPlacement::Target> targets_;
  Buffer<float> residual_;
  Buffer<bf16> norm_;
  Buffer<bf16> y_;
  Buffer<std::int32_t> row_index_;
  Buffer<std::uint32_t> sent_rows_;
  Buffer<float> partial_;
  Buffer<std::uint32_t> expert_begin_;
  Buffer<std::uint32_t> route_tokens_;
  Buffer<float> route_weights_;
  Buffer<std::uint32_t> token_route_begin_;
  Buffer<std::uint32_t> token_routes_;
  Buffer<const void*> token_rows_;
  Buffer<TokenSource> token_sources_;
  Buffer<bf16> outputs_;
  Buffer<DispatchCounters> counters_{1};
  Buffer<std::uint32_t> num_tokens_{1};
  Buffer<std::uint32_t> peer_rows_{1};
  Buffer<std::uint32_t> ctas_done_{1};
  Buffer<std::uint32_t> ready_{1};
  Buffer<std::uint64_t> timeout_ns_{std::vector<std::uint64_t>{1'000'000'000}};
  Buffer<layout::AbortState> abort_{1};
  std::vector<std::unique_ptr<Buffer<bf16>>> routers_;
  std::vector<std::unique_ptr<Buffer<std::byte>>> windows_;
  std::unique_ptr<Buffer<std::byte*>> dispatch_windows_;
  std::unique_ptr<Buffer<std::byte*>> combine_windows_;
  std::uint32_t* abort_word_ = nullptr;
};

void measure(const Shape& shape) {
  Bench bench(shape);
  const double dispatch =
      median_microseconds(kCalls, [&](int i, cudaStream_t s) { bench.dispatch(i, s); });
  const double wait =
      median_microseconds(kCalls, [&](int, cudaStream_t s) { bench.wait(false, s); });
  const double index = median_microseconds(kCalls, [&](int, cudaStream_t s) { bench.index(s); });
  const double send =
      median_microseconds(kCalls, [&](int, cudaStream_t s) { bench.combine_send(s); });
  const double receive =
      median_microseconds(kCalls, [&](int, cudaStream_t s) { bench.combine_receive(s); });
  const double chain = median_microseconds(kCalls, [&](int i, cudaStream_t s) {
    bench.dispatch(i, s);
    bench.wait(false, s);
    bench.index(s);
    bench.combine_send(s);
    bench.wait(true, s);
    bench.combine_receive(s);
  });
  bench.read_counts();
  const double row = shape.hidden_dim;
  const double rows = shape.num_rows;
  const auto floor = [](double bytes) { return floor_microseconds(bytes, 0.0, 1.0); };
  const double dispatch_floor =
      floor(2.0 * shape.num_experts * row + 4.0 * rows * row + bench.rows_sent * bench.row_bytes());
  const double send_floor = floor(2.0 * row * (bench.num_routes + bench.rows_here));
  const double receive_floor = floor(rows * row * (4 + 4 + 2) + 2.0 * row * bench.rows_sent);
  std::printf(
      "%6u %7u %3u %6u %5s | %8.2f %6.2f %5.1f | %5.2f %6.2f | %7.2f %6.2f %5.1f | %7.2f "
      "%6.2f %5.1f | %7.2f\n",
      shape.hidden_dim, shape.num_experts, shape.num_servers, shape.num_rows,
      shape.dtype == DType::kFloat8E4M3 ? "fp8" : "bf16", dispatch, dispatch_floor,
      dispatch / dispatch_floor, wait, index, send, send_floor, send / send_floor, receive,
      receive_floor, receive / receive_floor, chain);
  std::fflush(stdout);
}

}  // namespace
}  // namespace fastfd::bench

int main(int argc, char** argv) {
  using fastfd::DType;
  const bool quick = argc > 1 && std::strcmp(argv[1], "quick") == 0;
  std::printf("us a call, median; floors are bytes / 4.3 TB/s\n");
  std::printf("%6s %7s %3s %6s %5s | %8s %6s %5s | %5s %6s | %7s %6s %5s | %7s %6s %5s | %7s\n",
              "hidden", "experts", "ffn", "tokens", "dtype", "dispatch", "floor", "ratio", "wait",
              "index", "c.send", "floor", "ratio", "c.recv", "floor", "ratio", "chain");
  struct Model {
    std::uint32_t hidden_dim;
    std::uint32_t num_experts;
  };
  for (const Model model : {Model{2048, 128}, Model{3072, 256}, Model{4096, 128}}) {
    for (const std::uint32_t num_servers : {1U, 2U, 3U, 4U}) {
      for (const std::uint32_t num_rows : {1U, 16U, 64U, 256U}) {
        for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
          if (!quick || (num_servers != 3 && (dtype == DType::kFloat8E4M3 || num_servers == 1))) {
            fastfd::bench::measure(
                {model.hidden_dim, model.num_experts, num_servers, num_rows, dtype});
          }
        }
      }
    }
  }
  return 0;
}
