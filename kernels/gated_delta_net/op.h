#pragma once

/// Gated delta net: linear attention whose memory of a sequence is one matrix a head instead of
/// keys and values of every token (Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving
/// Mamba2 with Delta Rule", 2024; the layer as Qwen3-Next and Qwen3.5 have it).

#include <atomic>
#include <cstdint>
#include <span>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// Columns of a recurrent state that lie together: 16 KiB of a head of 128 keys, so that a tile
/// stays in the first-level cache from token to token. The last tile of a head is padded.
inline constexpr std::int64_t kDeltaTileColumns = 32;
inline constexpr std::int64_t kMaxConvKernel = 8;

struct GatedDeltaNetShape {
  std::int64_t num_k_heads = 0;  ///< of queries and of keys
  std::int64_t num_v_heads = 0;  ///< a multiple of num_k_heads
  std::int64_t k_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::int64_t conv_kernel = 4;  ///< 2 .. kMaxConvKernel

  constexpr std::int64_t value_dim() const { return num_v_heads * v_head_dim; }
  /// What the convolution runs over: queries, keys, values.
  constexpr std::int64_t conv_dim() const { return 2 * num_k_heads * k_head_dim + value_dim(); }
  /// A row of the fused projection: queries, keys, values, gates z, then b and a of every v head.
  constexpr std::int64_t row_dim() const { return conv_dim() + value_dim() + 2 * num_v_heads; }

  constexpr std::int64_t tiles_per_head() const {
    return (v_head_dim + kDeltaTileColumns - 1) / kDeltaTileColumns;
  }
  /// What one sequence carries from token to token in one layer: the last inputs of the
  /// convolution, [conv_kernel - 1, conv_dim], oldest first, and the matrices of the heads,
  /// [num_v_heads][tiles_per_head][k_head_dim][kDeltaTileColumns].
  constexpr std::int64_t conv_state_floats() const { return (conv_kernel - 1) * conv_dim(); }
  constexpr std::int64_t recurrent_state_floats() const {
    return num_v_heads * tiles_per_head() * k_head_dim * kDeltaTileColumns;
  }
  std::int64_t state_floats() const { return conv_state_floats() + recurrent_state_floats(); }
};

/// Consecutive rows of one sequence: a prefill piece, or one decode row.
struct GatedDeltaNetSpan {
  std::int64_t first_row = 0;  ///< into projected and out
  std::int64_t num_rows = 0;   ///< at least 1
  /// The first row begins the sequence: the states are written but not read.
  bool begins = false;
  float* conv_state = nullptr;       ///< [conv_state_floats], as of the row before; updated
  float* recurrent_state = nullptr;  ///< [recurrent_state_floats], likewise
};

/// For every row t of a span and every v head (k head = v head / (num_v_heads / num_k_heads)):
///   q, k, v = silu(causal convolution of the projections);  q, k = q, k / sqrt(|.|^2 + 1e-6)
///   decay = exp(-exp(a_log) * softplus(a + dt_bias));  beta = sigmoid(b)
///   S = decay * S;  S = S + k (beta * (v - k^T S))^T;  o = (q / sqrt(k_head_dim))^T S
///   out = o / sqrt(mean(o^2) + eps) * norm_weight * silu(z)
struct GatedDeltaNetParams {
  GatedDeltaNetShape shape;
  /// [rows, row_dim]. The launch leaves the convolved queries, keys and values in it.
  float* projected = nullptr;
  const float* conv_weight = nullptr;        ///< [conv_kernel, conv_dim], the oldest input's first
  const float* a_log = nullptr;              ///< [num_v_heads]
  const float* dt_bias = nullptr;            ///< [num_v_heads]
  const float* norm_weight = nullptr;        ///< [v_head_dim]
  float eps = 1e-6F;                         ///< of the norm
  std::span<const GatedDeltaNetSpan> spans;  ///< disjoint rows and states
  float* out = nullptr;                      ///< [rows, value_dim]
  /// Polled at least every 64 rows; true ends the launch with kAborted, states half written.
  /// nullptr: never.
  const std::atomic<bool>* abort = nullptr;
};

/// A row's result and the state after it depend on its own sequence only, bit for bit: not on other
/// spans, the cutting of a prompt into pieces, or the number of threads. kInvalidArgument for
/// shapes that don't fit each other.
Status launch_gated_delta_net(const GatedDeltaNetParams& params, const device::CpuStream& stream);
void reference_gated_delta_net(const GatedDeltaNetParams& params);

}  // namespace fastfd::kernels
