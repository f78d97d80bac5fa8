/// Latent attention (DeepSeek-V2-Lite: 16 heads, DeepSeek-V3: 128) on one GPU: medians of graph
/// replays beside the time that reading every latent row once, or the arithmetic, takes at the
/// GPU's measured ceilings.

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench_data.h"
#include "kernels/latent_attention/op_cuda.h"

namespace fastfd::bench {
namespace {

using kernels::cuda::kLatentDim;
using kernels::cuda::kLatentRowDim;

struct Span {
  std::int64_t num_rows;
  std::int64_t start;
};

void attention(const std::string& what, const std::vector<Span>& spans, std::int64_t num_heads) {
  constexpr std::int64_t kPageSize = 16;
  constexpr int kLayers = 3;
  std::vector<layout::LaneSpan> lane_spans;
  std::int64_t num_rows = 0;
  std::int64_t max_context = 0;
  double bytes = 0.0;
  double scores = 0.0;
  for (const Span& span : spans) {
    lane_spans.push_back({.first_row = static_cast<std::uint32_t>(num_rows),
                          .num_rows = static_cast<std::uint32_t>(span.num_rows),
                          .start_position = static_cast<std::uint32_t>(span.start),
                          .slot = static_cast<SlotId>(lane_spans.size())});
    num_rows += span.num_rows;
    const std::int64_t context = span.start + span.num_rows;
    max_context = std::max(max_context, context);
    bytes += static_cast<double>(context * kLatentRowDim) * 2;
    scores += static_cast<double>(span.num_rows) *
              (static_cast<double>(span.start) + static_cast<double>(span.num_rows + 1) / 2);
  }
  bytes += static_cast<double>(num_rows * num_heads * (kLatentRowDim + kLatentDim)) * 2;
  const double flops = 2 * scores * static_cast<double>(num_heads * (kLatentRowDim + kLatentDim));

  const auto num_slots = static_cast<std::int64_t>(spans.size());
  const std::int64_t pages_per_slot = (max_context + kPageSize - 1) / kPageSize;
  std::vector<PageId> tables(static_cast<std::size_t>(num_slots * pages_per_slot));
  std::iota(tables.begin(), tables.end(), PageId{0});
  std::shuffle(tables.begin(), tables.end(), std::mt19937(3));
  layout::LaneControl control;
  control.num_rows = static_cast<std::uint32_t>(num_rows);
  control.num_spans = static_cast<std::uint32_t>(num_slots);
  const auto block = bf16_normals(std::size_t{1} << 21);
  const std::size_t layer_values = tables.size() * kPageSize * kLatentRowDim;
  DeviceBuffer<bf16> pool(layer_values * kLayers);
  DeviceBuffer<bf16> queries(static_cast<std::size_t>(num_rows * num_heads * kLatentRowDim));
  DeviceBuffer<bf16> out(static_cast<std::size_t>(num_rows * num_heads * kLatentDim));
  pool.repeat(block);
  queries.repeat(block);
  DeviceBuffer<PageId> device_tables(tables);
  DeviceBuffer<layout::LaneControl> device_control(std::vector{control});
  DeviceBuffer<layout::LaneSpan> device_spans(lane_spans);
  DeviceBuffer<layout::AbortState> abort(std::vector{layout::AbortState{}});
  auto workspace = kernels::cuda::AttentionWorkspace::of(
      kernels::cuda::latent_bucket(num_rows, num_slots, max_context, num_heads));
  DeviceBuffer<std::byte> memory(workspace.num_bytes());
  workspace.data = memory.data();
  int num_sms = 0;
  require(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), "SMs");
  require(kernels::cuda::launch_attention_schedule(
      {.workspace = workspace, .control = device_control.data(), .spans = device_spans.data()},
      nullptr));
  const double us = median_microseconds(kLayers, [&](int layer, cudaStream_t stream) {
    require(kernels::cuda::launch_latent_attention(
        {.workspace = workspace,
         .num_sms = num_sms,
         .abort = abort.data(),
         .spans = device_spans.data(),
         .latents = {.rows = pool.data() + static_cast<std::size_t>(layer) * layer_values,
                     .page_size = kPageSize,
                     .page_tables = device_tables.data(),
                     .pages_per_slot = pages_per_slot},
         .queries = queries.data(),
         .out = out.data(),
         .scale = 1.0F / std::sqrt(192.0F)},
        stream));
  });
  print(what + ", " + std::to_string(num_heads) + " heads", us,
        floor_microseconds(bytes, flops, kBf16FlopsPerSecond));
}

void run() {
  require(kernels::cuda::prepare_latent_attention());
  for (const std::int64_t num_heads : {128, 16}) {
    for (const std::int64_t context : {2048, 8192}) {
      attention("decode 64 at " + std::to_string(context), std::vector<Span>(64, {1, context - 1}),
                num_heads);
    }
    attention("decode 1 at 8192", {{1, 8191}}, num_heads);
    attention("prefill 1024", {{1024, 0}}, num_heads);
    attention("prefill 512 at 6144", {{512, 6144}}, num_heads);
  }
}

}  // namespace
}  // namespace fastfd::bench

int main() { fastfd::bench::run(); }
