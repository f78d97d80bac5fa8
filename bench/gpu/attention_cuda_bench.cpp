/// Attention's side of a layer on one GPU, with the heads of Qwen3-30B-A3B (32 queries, 4 keys and
/// values of 128): medians of graph replays beside the time that moving the bytes, or the
/// arithmetic, takes at the GPU's measured ceilings.

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench_data.h"
#include "kernels/attention/op_cuda.h"
#include "kernels/embedding/op_cuda.h"
#include "kernels/norm/op_cuda.h"
#include "kernels/rope/op_cuda.h"

namespace fastfd::bench {
namespace {

constexpr std::int64_t kQHeads = 32;
constexpr std::int64_t kKvHeads = 4;
constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kHiddenDim = 2048;

/// Bytes of bf16 or e4m3 numbers near 1 in size: no NaN, no zeros.
std::vector<std::byte> kv_block(DType dtype) {
  constexpr std::size_t kBytes = 1 << 22;
  std::vector<std::byte> bytes(kBytes);
  if (dtype == DType::kBFloat16) {
    const auto values = bf16_normals(kBytes / 2);
    std::copy_n(reinterpret_cast<const std::byte*>(values.data()), kBytes, bytes.data());
  } else {
    std::mt19937 engine(2);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>((engine() & 0x80U) | (0x28U + engine() % 0x14U));
    }
  }
  return bytes;
}

struct Span {
  std::int64_t num_rows;
  std::int64_t start;
};

/// One lane's batch on the device, for `num_layers` layers with pools of their own.
class Lane {
 public:
  Lane(const std::vector<Span>& spans, std::int64_t page_size, DType dtype, int num_layers)
      : spans_(make_spans(spans)),
        rows_(make_rows(spans)),
        pages_per_slot_((max_context_ + page_size - 1) / page_size),
        num_slots_(static_cast<std::int64_t>(spans.size())),
        page_size_(page_size),
        dtype_(dtype),
        layer_bytes_(static_cast<std::size_t>(num_slots_ * pages_per_slot_ * page_size * kKvHeads *
                                              kHeadDim) *
                     dtype_bytes(dtype)),
        keys_(layer_bytes_ * static_cast<std::size_t>(num_layers)),
        values_(layer_bytes_ * static_cast<std::size_t>(num_layers)),
        tables_(make_tables()),
        control_(std::vector{make_control()}),
        abort_(std::vector{layout::AbortState{}}),
        device_spans_(spans_),
        device_rows_(rows_),
        qkv_(bf16_normals(rows_.size() * (kQHeads + 2 * kKvHeads) * kHeadDim)),
        q_(bf16_normals(rows_.size() * kQHeads * kHeadDim)),
        out_(rows_.size() * kQHeads * kHeadDim) {
    const auto block = kv_block(dtype);
    keys_.repeat(block);
    values_.repeat(block);
    workspace_ = kernels::cuda::AttentionWorkspace::of({.max_rows = num_rows(),
                                                        .max_spans = num_slots_,
                                                        .max_context = max_context_,
                                                        .num_q_heads = kQHeads,
                                                        .num_kv_heads = kKvHeads,
                                                        .head_dim = kHeadDim});
    require(cudaMalloc(&workspace_.data, workspace_.num_bytes()), "workspace");
    require(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0), "SMs");
    schedule(nullptr);
  }
  ~Lane() { cudaFree(workspace_.data); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }

  void schedule(cudaStream_t stream) {
    require(kernels::cuda::launch_attention_schedule(
        {.workspace = workspace_, .control = control_.data(), .spans = device_spans_.data()},
        stream));
  }

  void attend(int layer, cudaStream_t stream) {
    require(kernels::cuda::launch_paged_attention(
        {.workspace = workspace_,
         .num_sms = num_sms_,
         .abort = abort_.data(),
         .spans = device_spans_.data(),
         .kv = kv(layer),
         .q = q_.data(),
         .out = out_.data(),
         .scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim))},
        stream));
  }

  void rotate(int layer, const float* cos, const float* sin, std::int64_t max_positions,
              const float* norm, cudaStream_t stream) {
    require(kernels::cuda::launch_rope_kv_write({.max_rows = num_rows(),
                                                 .num_q_heads = kQHeads,
                                                 .control = control_.data(),
                                                 .abort = abort_.data(),
                                                 .rows = device_rows_.data(),
                                                 .qkv = qkv_.data(),
                                                 .q = q_.data(),
                                                 .kv = kv(layer),
                                                 .norm = kernels::QkNorm::kPerHead,
                                                 .q_norm_weight = norm,
                                                 .k_norm_weight = norm,
                                                 .cos = cos,
                                                 .sin = sin,
                                                 .max_positions = max_positions,
                                                 .rotary_dim = kHeadDim},
                                                stream));
  }

  /// What attention reads and writes, and multiplies.
  double num_bytes() const {
    double tokens = 0.0;
    for (const auto& span : spans_) {
      tokens += span.start_position + span.num_rows;
    }
    return tokens * 2 * kKvHeads * kHeadDim * static_cast<double>(dtype_bytes(dtype_)) +
           static_cast<double>(num_rows()) * 2 * kQHeads * kHeadDim * 2;
  }
  double num_flops() const {
    double scores = 0.0;
    for (const auto& span : spans_) {
      for (std::uint32_t i = 0; i < span.num_rows; ++i) {
        scores += span.start_position + i + 1;
      }
    }
    return scores * 4 * kQHeads * kHeadDim;
  }

 private:
  std::vector<layout::LaneSpan> make_spans(const std::vector<Span>& spans) {
    std::vector<layout::LaneSpan> all;
    std::uint32_t row = 0;
    for (const Span& span : spans) {
      all.push_back({.first_row = row,
                     .num_rows = static_cast<std::uint32_t>(span.num_rows),
                     .start_position = static_cast<std::uint32_t>(span.start),
                     .slot = static_cast<SlotId>(all.size())});
      row += static_cast<std::uint32_t>(span.num_rows);
      max_context_ = std::max(max_context_, span.start + span.num_rows);
    }
    return all;
  }

  std::vector<layout::LaneRow> make_rows(const std::vector<Span>& spans) {
    std::vector<layout::LaneRow> rows;
    for (std::size_t slot = 0; slot < spans.size(); ++slot) {
      for (std::int64_t i = 0; i < spans[slot].num_rows; ++i) {
        rows.push_back({.slot = static_cast<SlotId>(slot),
                        .position = static_cast<std::uint32_t>(spans[slot].start + i)});
      }
    }
    return rows;
  }

  std::vector<PageId> make_tables() const {
    std::vector<PageId> tables(static_cast<std::size_t>(num_slots_ * pages_per_slot_));
    std::iota(tables.begin(), tables.end(), PageId{0});
    std::shuffle(tables.begin(), tables.end(), std::mt19937(3));
    return tables;
  }

  layout::LaneControl make_control() const {
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(rows_.size());
    control.num_spans = static_cast<std::uint32_t>(spans_.size());
    return control;
  }

  kernels::cuda::PagedKv kv(int layer) {
    const std::size_t offset = layer_bytes_ * static_cast<std::size_t>(layer);
    return {.keys = keys_.data() + offset,
            .values = values_.data() + offset,
            .dtype = dtype_,
            .page_size = page_size_,
            .num_kv_heads = kKvHeads,
            .head_dim = kHeadDim,
            .page_tables = tables_.data(),
            .pages_per_slot = pages_per_slot_};
  }

  std::int64_t max_context_ = 0;
  std::vector<layout::LaneSpan> spans_;
  std::vector<layout::LaneRow> rows_;
  std::int64_t pages_per_slot_;
  std::int64_t num_slots_;
  std::int64_t page_size_;
  DType dtype_;
  std::size_t layer_bytes_;
  DeviceBuffer<std::byte> keys_;
  DeviceBuffer<std::byte> values_;
  DeviceBuffer<PageId> tables_;
  DeviceBuffer<layout::LaneControl> control_;
  DeviceBuffer<layout::AbortState> abort_;
  DeviceBuffer<layout::LaneSpan> device_spans_;
  DeviceBuffer<layout::LaneRow> device_rows_;
  DeviceBuffer<bf16> qkv_;
  DeviceBuffer<bf16> q_;
  DeviceBuffer<bf16> out_;
  kernels::cuda::AttentionWorkspace workspace_;
  int num_sms_ = 0;
};

void attention(const std::string& what, const std::vector<Span>& spans, std::int64_t page_size,
               DType dtype) {
  constexpr int kLayers = 4;
  Lane lane(spans, page_size, dtype, kLayers);
  const double us =
      median_microseconds(kLayers, [&](int i, cudaStream_t stream) { lane.attend(i, stream); });
  print(what + ", pages of " + std::to_string(page_size) + " " + to_string(dtype), us,
        floor_microseconds(lane.num_bytes(), lane.num_flops(), kBf16FlopsPerSecond));
}

void rope(std::int64_t num_rows) {
  constexpr int kLayers = 4;
  constexpr std::int64_t kPositions = 4096;
  std::vector<Span> spans(static_cast<std::size_t>(num_rows <= 64 ? num_rows : 1),
                          {num_rows <= 64 ? 1 : num_rows, 1000});
  Lane lane(spans, 16, DType::kBFloat16, kLayers);
  DeviceBuffer<float> table(normals(kPositions * kHeadDim / 2, 0.5F));
  DeviceBuffer<float> norm(normals(kHeadDim, 1.0F));
  const double us = median_microseconds(kLayers, [&](int i, cudaStream_t stream) {
    lane.rotate(i, table.data(), table.data(), kPositions, norm.data(), stream);
  });
  const double bytes = static_cast<double>(num_rows) * (kQHeads + 2 * kKvHeads) * kHeadDim * 2 * 2;
  print("QK norm, RoPE, KV write, " + std::to_string(num_rows) + " rows", us,
        floor_microseconds(bytes, 0.0, kBf16FlopsPerSecond));
}

void schedule() {
  Lane lane(std::vector<Span>(64, {1, 8191}), 16, DType::kBFloat16, 1);
  print("schedule, 64 decode rows at 8192",
        median_microseconds(4, [&](int, cudaStream_t stream) { lane.schedule(stream); }), 1.0);
}

void norm_and_embedding(std::int64_t num_rows) {
  constexpr int kSets = 4;
  layout::LaneControl control;
  control.num_rows = static_cast<std::uint32_t>(num_rows);
  DeviceBuffer<layout::LaneControl> device_control(std::vector{control});
  const auto count = static_cast<std::size_t>(num_rows * kHiddenDim);
  DeviceBuffer<float> x(normals(count, 1.0F));
  DeviceBuffer<float> weight(normals(kHiddenDim, 1.0F));
  DeviceBuffer<bf16> y(count);
  const auto bytes = static_cast<double>(count) * 6;
  print("RMSNorm, " + std::to_string(num_rows) + " rows of 2048",
        median_microseconds(kSets,
                            [&](int, cudaStream_t stream) {
                              require(
                                  kernels::cuda::launch_rms_norm({.max_rows = num_rows,
                                                                  .dim = kHiddenDim,
                                                                  .control = device_control.data(),
                                                                  .x = x.data(),
                                                                  .weight = weight.data(),
                                                                  .y = y.data()},
                                                                 stream));
                            }),
        floor_microseconds(bytes, 0.0, kBf16FlopsPerSecond));
  constexpr std::int64_t kTokens = 8192;
  std::vector<layout::LaneRow> rows(static_cast<std::size_t>(num_rows));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].token = static_cast<TokenId>(i * 7919 % kTokens);
  }
  DeviceBuffer<layout::LaneRow> device_rows(rows);
  DeviceBuffer<TokenId> last_tokens(std::vector<TokenId>(1));
  DeviceBuffer<bf16> table(bf16_normals(kTokens * kHiddenDim));
  print("embedding, " + std::to_string(num_rows) + " rows of 2048",
        median_microseconds(kSets,
                            [&](int, cudaStream_t stream) {
                              require(kernels::cuda::launch_embedding(
                                  {.max_rows = num_rows,
                                   .dim = kHiddenDim,
                                   .vocab_size = kTokens,
                                   .control = device_control.data(),
                                   .rows = device_rows.data(),
                                   .last_tokens = last_tokens.data(),
                                   .table = table.data(),
                                   .out = x.data()},
                                  stream));
                            }),
        floor_microseconds(bytes, 0.0, kBf16FlopsPerSecond));
}

void run() {
  require(kernels::cuda::prepare_paged_attention());
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    for (const std::int64_t context : {2048, 8192}) {
      for (const std::int64_t page_size : {16, 64}) {
        attention("decode 64 at " + std::to_string(context),
                  std::vector<Span>(64, {1, context - 1}), page_size, dtype);
      }
    }
    attention("decode 1 at 8192", {{1, 8191}}, 16, dtype);
    attention("decode 8 at 32768", std::vector<Span>(8, {1, 32767}), 16, dtype);
    attention("prefill 2048", {{2048, 0}}, 16, dtype);
    attention("prefill 2048 at 6144", {{2048, 6144}}, 16, dtype);
    std::vector<Span> mix(63, {1, 2047});
    mix.push_back({512, 1024});
    attention("decode 63 at 2048 and prefill 512 at 1024", mix, 16, dtype);
  }
  schedule();
  rope(64);
  rope(2048);
  norm_and_embedding(64);
  norm_and_embedding(2048);
}

}  // namespace
}  // namespace fastfd::bench

int main() {
  fastfd::bench::run();
  return 0;
}
