#pragma once

/// What is compiled once per instruction set: the inner kernels, reached through a table that the
/// launchers pick by CpuStream::isa (kernel_table.h). Plain structs and pointers only, since the
/// units behind it are compiled for different machines (see vec.h).

#include <cstdint>

namespace fastfd::kernels::simd {

/// C[i][j] (+)= sum over k of rows[i][k] * W[j][k], over consecutive panels of packed weights.
struct GemmPanels {
  /// [num_rows] -> [k] floats, or [padded k] bf16 for `gemm_bf16`.
  const void* const* rows = nullptr;
  std::int64_t num_rows = 0;
  const std::uint16_t* weights = nullptr;  ///< first panel, [num_panels][ceil(k/2)][64][2] bf16
  std::int64_t k = 0;
  std::int64_t num_columns = 0;  ///< of C, from the first panel on
  float* c = nullptr;            ///< [num_rows, num_columns], row stride ldc
  std::int64_t ldc = 0;
  bool accumulate = false;
  /// Weights [ceil(k/2)][64][2] that the caller reads next, fetched meanwhile; nullptr: none.
  const std::uint16_t* next = nullptr;
};

/// Queries of one KV head against its keys and values, in blocks of tokens.
struct AttentionBlock {
  std::int64_t num_queries = 0;           ///< at most kMaxAttentionQueries
  const std::int64_t* limits = nullptr;   ///< [num_queries] tokens before a query's end; ascending
  std::int64_t window = 0;                ///< of which it sees the last so many; 0: all
  const float* sinks = nullptr;           ///< [num_queries] logits without a value, or nullptr
  const float* const* queries = nullptr;  ///< [num_queries] -> [head_dim]
  float* const* outputs = nullptr;        ///< [num_queries] -> [value_dim]
  const void* keys = nullptr;             ///< pool, at this KV head of page 0
  const void* values = nullptr;           ///< may be `keys`
  bool pool_is_bf16 = true;
  const std::uint32_t* pages = nullptr;
  std::int64_t page_size = 0;    ///< a power of two
  std::int64_t page_stride = 0;  ///< elements from a page to the next
  std::int64_t head_dim = 0;     ///< of a key, and from a token's value to the next one's
  std::int64_t value_dim = 0;    ///< of a value, at most head_dim
  float scale = 1.0F;
  float* scratch = nullptr;  ///< attention_scratch_floats(head_dim)
};

inline constexpr std::int64_t kMaxAttentionQueries = 16;
/// Tokens of a softmax block. Blocks start at multiples of it, so that the order of a row's sums
/// depends on its position only.
inline constexpr std::int64_t kAttentionTokens = 64;
/// head_dim is padded to a multiple of it inside the scratch.
inline constexpr std::int64_t kHeadDimPad = 64;

constexpr std::int64_t padded_head_dim(std::int64_t head_dim) {
  return (head_dim + kHeadDimPad - 1) / kHeadDimPad * kHeadDimPad;
}
constexpr std::int64_t attention_scratch_floats(std::int64_t head_dim) {
  // Queries, sums of values, scores; one padded key and value row each for odd head sizes.
  return kMaxAttentionQueries * (2 * padded_head_dim(head_dim) + kAttentionTokens) +
         2 * kAttentionTokens * padded_head_dim(head_dim);
}

/// Tokens of one sequence through kDeltaColumns columns of one head's recurrent state, which no
/// other column depends on.
struct DeltaTile {
  float* state = nullptr;  ///< [k_dim, kDeltaColumns]
  std::int64_t k_dim = 0;
  std::int64_t num_rows = 0;     ///< at least 1
  std::int64_t num_columns = 0;  ///< 1 .. kDeltaColumns; those beyond hold zeros
  std::int64_t row_stride = 0;   ///< of q, k and v
  const float* q = nullptr;      ///< [num_rows] x [k_dim]
  const float* k = nullptr;      ///< [num_rows] x [k_dim]
  const float* v = nullptr;      ///< [num_rows] x [num_columns]
  const float* decay = nullptr;  ///< [num_rows]
  const float* beta = nullptr;   ///< [num_rows]
  float* out = nullptr;          ///< [num_rows] x [num_columns]
  std::int64_t out_stride = 0;
};
inline constexpr std::int64_t kDeltaColumns = 32;

struct KernelTable {
  const char* name;

  void (*gemm_f32)(const GemmPanels&);
  /// nullptr without bf16 dot instructions.
  void (*gemm_bf16)(const GemmPanels&);
  /// Rounds `num` floats to bf16.
  void (*to_bf16)(const float* x, std::uint16_t* y, std::int64_t num);
  /// Rounds to bf16 and back.
  void (*round_bf16)(const float* x, float* y, std::int64_t num);
  void (*from_bf16)(const std::uint16_t* x, float* y, std::int64_t num);

  /// Rows of [32 gates, 32 ups] -> 32 times silu(gate) * up.
  void (*swiglu)(const float* gate_up, float* hidden);
  /// The same with gate * sigmoid(alpha * gate) * (up + 1), gate at most `limit` and up within
  /// +-limit.
  void (*clamped_swiglu)(const float* gate_up, float* hidden, float alpha, float limit);
  /// y += weight * x
  void (*axpy)(float weight, const float* x, float* y, std::int64_t num);

  /// y = x / sqrt(mean(x^2) + eps) * weight; y may be x.
  void (*rms_norm)(const float* x, const float* weight, float* y, std::int64_t dim, float eps);
  /// residual += sum of the partials; nullptr entries are skipped.
  void (*add_partials)(float* residual, const void* const* partials, std::int64_t num_partials,
                       std::int64_t partial_stride, bool partial_is_bf16, std::int64_t dim);
  /// Half-split rotation of x[0 .. 2 * half).
  void (*rotate)(float* x, const float* cos, const float* sin, std::int64_t half);

  void (*attention)(const AttentionBlock&);

  /// y = silu(sum over taps of taps[tap] * weight[tap * weight_stride]), element by element; y may
  /// be one of the taps.
  void (*conv_silu)(const float* const* taps, std::int64_t num_taps, const float* weight,
                    std::int64_t weight_stride, float* y, std::int64_t num);
  /// x *= scale / sqrt(sum(x^2) + eps)
  void (*l2_normalize)(float* x, std::int64_t num, float eps, float scale);
  /// y *= silu(gate)
  void (*silu_gate)(const float* gate, float* y, std::int64_t num);
  void (*delta_rule)(const DeltaTile&);
  /// y *= sigmoid(gate)
  void (*sigmoid_gate)(const float* gate, float* y, std::int64_t num);

  /// The largest element, and whether any is NaN. `num` at least 1.
  float (*max_element)(const float* x, std::int64_t num, bool* has_nan);
  /// First index >= begin with x[i] >= bound, or num.
  std::int64_t (*find_at_least)(const float* x, std::int64_t begin, std::int64_t num, float bound);
  /// Sum of exp((x[i] - largest) * scale); the terms go to y unless it is nullptr.
  double (*exp_sum)(const float* x, std::int64_t num, float largest, float scale, float* y);
};

}  // namespace fastfd::kernels::simd
