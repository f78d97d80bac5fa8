#pragma once

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): what is cached of a token is
/// one latent row for all heads, from which each head's key and value are projections, and one
/// rotated key that the heads share. The projections are absorbed: into the queries, which then
/// meet the latents themselves, and behind the sum over latents. So there is no second form for
/// prompts, whose rounding would make a row's result depend on how its prompt is cut.

#include <atomic>
#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"
#include "kernels/attention/op.h"
#include "kernels/rope/op.h"

namespace fastfd::kernels {

/// Pages of one layer: [num_pages][page_size][latent_dim + rope_dim], a token's latent row and its
/// rotated key.
struct LatentPool {
  void* rows = nullptr;
  DType dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat32
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;  ///< tokens, a power of two
  std::int64_t latent_dim = 0;
  std::int64_t rope_dim = 0;

  std::int64_t row_dim() const { return latent_dim + rope_dim; }
};

/// What the projections of a row become before attention: RMSNorm of the latent row, rotation of
/// the shared key and of every query's last rope_dim elements.
struct LatentRowsParams {
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t nope_dim = 0;  ///< elements of a query that are not rotated
  std::int64_t latent_dim = 0;
  const float* q = nullptr;   ///< [num_rows, num_heads, nope_dim + rotary_dim]
  const float* kv = nullptr;  ///< [num_rows, latent_dim + rotary_dim], row stride kv_stride
  std::int64_t kv_stride = 0;
  const float* norm_weight = nullptr;       ///< [latent_dim]
  const std::int32_t* positions = nullptr;  ///< [num_rows]
  const RopeTable* table = nullptr;
  /// Pairs that rotate together: elements 2i and 2i + 1, which come out as i and i + rotary_dim /
  /// 2; or i and i + rotary_dim / 2 from the start.
  bool interleaved = true;
  float eps = 1e-6F;
  float* latents = nullptr;  ///< out [num_rows, latent_dim + rotary_dim]
  /// out [num_rows, num_heads, latent_dim + rotary_dim], the last rotary_dim elements of each head.
  float* queries = nullptr;
};
/// kInvalidArgument for a position outside the table.
Status launch_latent_rows(const LatentRowsParams& params, const device::CpuStream& stream);
void reference_latent_rows(const LatentRowsParams& params);

/// Writes the new latent rows into the pages, then causal attention of every row over its own
/// sequence up to and including itself: scores against whole rows, sums of their latent part.
struct LatentAttentionParams {
  std::int64_t num_heads = 0;
  const float* queries = nullptr;  ///< [rows, num_heads, latent_dim + rope_dim]
  const float* latents = nullptr;  ///< [rows, latent_dim + rope_dim]
  LatentPool pool;
  std::span<const AttentionSpan> spans;  ///< disjoint row ranges, into queries, latents and out
  float* out = nullptr;                  ///< [rows, num_heads, latent_dim]
  float scale = 1.0F;                    ///< of the scores
  /// Polled at least every 64 rows; true ends the launch with kAborted. nullptr: never.
  const std::atomic<bool>* abort = nullptr;
};

/// A row's result depends on its own sequence only: not on other spans, the cutting of a prompt
/// into pieces, or the number of threads.
Status launch_latent_attention(const LatentAttentionParams& params,
                               const device::CpuStream& stream);
void reference_latent_attention(const LatentAttentionParams& params);

}  // namespace fastfd::kernels
