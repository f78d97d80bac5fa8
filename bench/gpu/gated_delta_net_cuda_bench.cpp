/// A gated delta net layer's kernels on one GPU, with the heads of Qwen3.5-35B-A3B (16 of keys, 32
/// of values, 128 wide): medians of graph replays beside the time that moving the bytes, or the
/// delta rule's arithmetic on the float units, takes at the GPU's ceilings.

#include <cstdint>
#include <string>
#include <vector>

#include "bench_data.h"
#include "kernels/gated_delta_net/op_cuda.h"

namespace fastfd::bench {
namespace {

namespace cuda = kernels::cuda;

constexpr kernels::GatedDeltaNetShape kShape{
    .num_k_heads = 16, .num_v_heads = 32, .k_head_dim = 128, .v_head_dim = 128};
constexpr int kLayers = 4;
/// 132 SMs, 128 multiplications with addition a clock, 1.98 GHz.
constexpr double kFloatFlopsPerSecond = 6.7e13;
constexpr std::uint32_t kPosition = 1000;

/// Spans of equal length, far into their sequences.
void delta_net(const std::string& what, std::uint32_t num_spans, std::uint32_t rows_per_span) {
  const std::size_t num_rows = std::size_t{num_spans} * rows_per_span;
  std::vector<layout::LaneRow> rows;
  std::vector<layout::LaneSpan> spans;
  for (SlotId slot = 0; slot < num_spans; ++slot) {
    spans.push_back({.first_row = static_cast<std::uint32_t>(rows.size()),
                     .num_rows = rows_per_span,
                     .start_position = kPosition,
                     .slot = slot});
    for (std::uint32_t i = 0; i < rows_per_span; ++i) {
      rows.push_back({.slot = slot, .position = kPosition + i});
    }
  }
  layout::LaneControl control;
  control.num_rows = static_cast<std::uint32_t>(num_rows);
  control.num_spans = num_spans;
  const auto count = [](std::int64_t values) { return static_cast<std::size_t>(values); };
  const std::size_t conv_floats = num_spans * count(kShape.conv_state_floats());
  const std::size_t matrix_floats = num_spans * count(cuda::recurrent_state_floats(kShape));
  DeviceBuffer<layout::LaneControl> device_control(std::vector{control});
  DeviceBuffer<layout::AbortState> abort(std::vector{layout::AbortState{}});
  DeviceBuffer<layout::LaneRow> device_rows(rows);
  DeviceBuffer<layout::LaneSpan> device_spans(spans);
  DeviceBuffer<bf16> projected(num_rows * count(kShape.row_dim()));
  projected.repeat(bf16_normals(1 << 20, 0.5F));
  DeviceBuffer<float> conv_weight(normals(count(kShape.conv_kernel * kShape.conv_dim()), 0.5F));
  DeviceBuffer<float> per_head(normals(count(kShape.num_v_heads), 1.0F));
  DeviceBuffer<float> norm(normals(count(kShape.v_head_dim), 1.0F));
  DeviceBuffer<float> conv_states(kLayers * conv_floats);
  DeviceBuffer<float> matrices(kLayers * matrix_floats);
  conv_states.repeat(normals(1 << 16, 0.1F));
  matrices.repeat(normals(1 << 16, 0.1F));
  DeviceBuffer<float> mixed(num_rows * count(kShape.conv_dim()));
  DeviceBuffer<float> heads(num_rows * count(kShape.value_dim()));
  DeviceBuffer<bf16> out(num_rows * count(kShape.value_dim()));
  const double us = median_microseconds(kLayers, [&](int layer, cudaStream_t stream) {
    const auto at = static_cast<std::size_t>(layer);
    require(cuda::launch_gated_delta_net({.shape = kShape,
                                          .max_rows = static_cast<std::int64_t>(num_rows),
                                          .max_spans = num_spans,
                                          .control = device_control.data(),
                                          .abort = abort.data(),
                                          .rows = device_rows.data(),
                                          .spans = device_spans.data(),
                                          .projected = projected.data(),
                                          .conv_weight = conv_weight.data(),
                                          .a_log = per_head.data(),
                                          .dt_bias = per_head.data(),
                                          .norm_weight = norm.data(),
                                          .conv_states = conv_states.data() + at * conv_floats,
                                          .recurrent_states = matrices.data() + at * matrix_floats,
                                          .mixed = mixed.data(),
                                          .heads = heads.data(),
                                          .out = out.data()},
                                         stream));
  });
  const double state_bytes = 2.0 * sizeof(float) * static_cast<double>(conv_floats + matrix_floats);
  const double row_bytes = 2.0 * static_cast<double>(num_rows) *
                           static_cast<double>(kShape.row_dim() + kShape.value_dim());
  // Of every element of a head's matrix: decay, prediction, update, result.
  const double flops = 7.0 * static_cast<double>(num_rows) *
                       static_cast<double>(cuda::recurrent_state_floats(kShape));
  print(what, us, floor_microseconds(state_bytes + row_bytes, flops, kFloatFlopsPerSecond));
}

void run() {
  delta_net("decode 1", 1, 1);
  delta_net("decode 64", 64, 1);
  delta_net("decode 256", 256, 1);
  delta_net("prefill 512", 1, 512);
  delta_net("prefill 2048", 1, 2048);
  delta_net("prefill 4 x 512", 4, 512);
}

}  // namespace
}  // namespace fastfd::bench

int main() {
  fastfd::bench::run();
  return 0;
}
