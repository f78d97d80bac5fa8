#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/gated_delta_net/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

static_assert(kDeltaTileColumns == simd::kDeltaColumns);

constexpr float kNormEps = 1e-6F;  // of queries and keys
// Rows between two looks at the abort word.
constexpr std::int64_t kRowBlock = 64;

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

/// One launch, in two passes: convolution and norms in place, a head of queries, keys or values an
/// item; then the delta rule and the gated norm, a v head an item. The recurrence goes from token
/// to token: a chunked form would round differently where a prompt is cut, and the projections of a
/// layer cost many times what the recurrence does.
class GatedDeltaNet {
 public:
  GatedDeltaNet(const GatedDeltaNetParams& params, const device::CpuStream& stream)
      : params_(params), stream_(stream), table_(simd::kernel_table(stream.isa)) {}

  Status run() {
    const GatedDeltaNetShape& shape = params_.shape;
    const auto num_spans = static_cast<std::int64_t>(params_.spans.size());
    double num_rows = 0.0;
    for (const GatedDeltaNetSpan& span : params_.spans) {
      num_rows += static_cast<double>(span.num_rows);
    }
    const std::int64_t num_groups = 2 * shape.num_k_heads + shape.num_v_heads;
    const auto conv_floats = static_cast<double>(shape.conv_dim()) * num_rows;
    simd::split(stream_, num_spans * num_groups, 1,
                simd::estimated_microseconds(60.0 * conv_floats, 8.0 * conv_floats),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t item = begin; item < end && !abort_requested(); ++item) {
                    convolve(span(item / num_groups), item % num_groups);
                  }
                });
    const auto state_floats = static_cast<double>(shape.recurrent_state_floats());
    simd::split(stream_, num_spans * shape.num_v_heads, 1,
                simd::estimated_microseconds(7.0 * state_floats * num_rows,
                                             8.0 * state_floats * static_cast<double>(num_spans)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t item = begin; item < end && !abort_requested(); ++item) {
                    run_head(span(item / shape.num_v_heads), item % shape.num_v_heads);
                  }
                });
    if (aborted_.load(std::memory_order_relaxed)) {
      return {StatusCode::kAborted, "gated delta net: the epoch was abandoned"};
    }
    return Status::ok();
  }

 private:
  const GatedDeltaNetSpan& span(std::int64_t index) const {
    return params_.spans[static_cast<std::size_t>(index)];
  }

  bool abort_requested() {
    if (params_.abort != nullptr && params_.abort->load(std::memory_order_relaxed)) {
      aborted_.store(true, std::memory_order_relaxed);
    }
    return aborted_.load(std::memory_order_relaxed);
  }

  float* row(const GatedDeltaNetSpan& span, std::int64_t index) const {
    return params_.projected + (span.first_row + index) * params_.shape.row_dim();
  }

  /// From the last row to the first, because a row's inputs are those of the rows before it.
  void convolve(const GatedDeltaNetSpan& span, std::int64_t group) {
    const GatedDeltaNetShape& shape = params_.shape;
    const bool is_value = group >= 2 * shape.num_k_heads;
    const std::int64_t dim = is_value ? shape.v_head_dim : shape.k_head_dim;
    const std::int64_t first = is_value ? 2 * shape.num_k_heads * shape.k_head_dim +
                                              (group - 2 * shape.num_k_heads) * shape.v_head_dim
                                        : group * shape.k_head_dim;
    const std::int64_t history = shape.conv_kernel - 1;
    if (span.begins) {
      for (std::int64_t i = 0; i < history; ++i) {
        std::fill_n(span.conv_state + i * shape.conv_dim() + first, dim, 0.0F);
      }
    }
    // Input of the convolution at `index`, counted from the span's first row.
    const auto input = [&](std::int64_t index) {
      return index >= 0 ? row(span, index) + first
                        : span.conv_state + (history + index) * shape.conv_dim() + first;
    };
    thread_local device::HostBuffer scratch;
    float* last_inputs = simd::reserve<float>(scratch, history * dim);
    for (std::int64_t i = 0; i < history; ++i) {
      std::copy_n(input(span.num_rows - history + i), dim, last_inputs + i * dim);
    }
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.k_head_dim));
    std::array<const float*, kMaxConvKernel> taps;
    for (std::int64_t r = span.num_rows - 1; r >= 0; --r) {
      if (r % kRowBlock == 0 && abort_requested()) {
        return;
      }
      for (std::int64_t tap = 0; tap <= history; ++tap) {
        taps[static_cast<std::size_t>(tap)] = input(r - history + tap);
      }
      float* out = row(span, r) + first;
      table_.conv_silu(taps.data(), shape.conv_kernel, params_.conv_weight + first,
                       shape.conv_dim(), out, dim);
      if (!is_value) {
        table_.l2_normalize(out, dim, kNormEps, group < shape.num_k_heads ? scale : 1.0F);
      }
    }
    for (std::int64_t i = 0; i < history; ++i) {
      std::copy_n(last_inputs + i * dim, dim, span.conv_state + i * shape.conv_dim() + first);
    }
  }

  void run_head(const GatedDeltaNetSpan& span, std::int64_t head) {
    const GatedDeltaNetShape& shape = params_.shape;
    const std::int64_t tile_floats = shape.k_head_dim * kDeltaTileColumns;
    float* state = span.recurrent_state + head * shape.tiles_per_head() * tile_floats;
    if (span.begins) {
      std::fill_n(state, shape.tiles_per_head() * tile_floats, 0.0F);
    }
    for (std::int64_t first = 0; first < span.num_rows; first += kRowBlock) {
      if (abort_requested()) {
        return;
      }
      run_rows(span, head, first, std::min(kRowBlock, span.num_rows - first), state);
    }
  }

  void run_rows(const GatedDeltaNetSpan& span, std::int64_t head, std::int64_t first,
                std::int64_t num_rows, float* state) const {
    const GatedDeltaNetShape& shape = params_.shape;
    const std::int64_t k_head = head / (shape.num_v_heads / shape.num_k_heads);
    const std::int64_t k_dim = shape.num_k_heads * shape.k_head_dim;
    std::array<float, kRowBlock> decay;
    std::array<float, kRowBlock> beta;
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const float* gates = row(span, first + i) + shape.conv_dim() + shape.value_dim() + head;
      const float rate = std::exp(params_.a_log[head]);
      decay[static_cast<std::size_t>(i)] =
          std::exp(-rate * softplus(gates[shape.num_v_heads] + params_.dt_bias[head]));
      beta[static_cast<std::size_t>(i)] = 1.0F / (1.0F + std::exp(-gates[0]));
    }
    const float* mixed = row(span, first);
    float* out =
        params_.out + (span.first_row + first) * shape.value_dim() + head * shape.v_head_dim;
    for (std::int64_t tile = 0; tile < shape.tiles_per_head(); ++tile) {
      const std::int64_t column = tile * kDeltaTileColumns;
      table_.delta_rule({.state = state + column * shape.k_head_dim,
                         .k_dim = shape.k_head_dim,
                         .num_rows = num_rows,
                         .num_columns = std::min(kDeltaTileColumns, shape.v_head_dim - column),
                         .row_stride = shape.row_dim(),
                         .q = mixed + k_head * shape.k_head_dim,
                         .k = mixed + k_dim + k_head * shape.k_head_dim,
                         .v = mixed + 2 * k_dim + head * shape.v_head_dim + column,
                         .decay = decay.data(),
                         .beta = beta.data(),
                         .out = out + column,
                         .out_stride = shape.value_dim()});
    }
    for (std::int64_t i = 0; i < num_rows; ++i) {
      float* y = out + i * shape.value_dim();
      table_.rms_norm(y, params_.norm_weight, y, shape.v_head_dim, params_.eps);
      table_.silu_gate(row(span, first + i) + shape.conv_dim() + head * shape.v_head_dim, y,
                       shape.v_head_dim);
    }
  }

  const GatedDeltaNetParams& params_;
  const device::CpuStream& stream_;
  const simd::KernelTable& table_;
  std::atomic<bool> aborted_{false};
};

Status check_params(const GatedDeltaNetParams& params) {
  const GatedDeltaNetShape& shape = params.shape;
  if (shape.num_k_heads < 1 || shape.num_v_heads < shape.num_k_heads ||
      shape.num_v_heads % shape.num_k_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("gated delta net: {} value heads are no multiple of {} key heads",
                        shape.num_v_heads, shape.num_k_heads)};
  }
  if (shape.k_head_dim < 1 || shape.v_head_dim < 1) {
    return {StatusCode::kInvalidArgument,
            fmt::format("gated delta net: heads of {} keys and {} values", shape.k_head_dim,
                        shape.v_head_dim)};
  }
  if (shape.conv_kernel < 2 || shape.conv_kernel > kMaxConvKernel) {
    return {StatusCode::kInvalidArgument,
            fmt::format("gated delta net: a convolution over {} inputs; 2 to {} can be computed",
                        shape.conv_kernel, kMaxConvKernel)};
  }
  for (const GatedDeltaNetSpan& span : params.spans) {
    if (span.num_rows < 1 || span.conv_state == nullptr || span.recurrent_state == nullptr) {
      return {StatusCode::kInvalidArgument,
              fmt::format("gated delta net: a span of {} rows or without state", span.num_rows)};
    }
  }
  return Status::ok();
}

}  // namespace

Status launch_gated_delta_net(const GatedDeltaNetParams& params, const device::CpuStream& stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  return GatedDeltaNet(params, stream).run();
}

}  // namespace fastfd::kernels
