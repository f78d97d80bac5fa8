#pragma once

/// Multi-head latent attention (kernels/latent_attention/op.h) on the GPU, for latent rows of 512
/// elements and rotated keys of 64: what DeepSeek-V2 and DeepSeek-V3 have.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/attention/op_cuda.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

inline constexpr std::int64_t kLatentDim = 512;
inline constexpr std::int64_t kLatentRopeDim = 64;
inline constexpr std::int64_t kLatentRowDim = kLatentDim + kLatentRopeDim;

/// Pages of one layer in device memory, [num_pages][page_size][kLatentRowDim] as LatentPool has
/// them, and the page tables of all sequences.
struct PagedLatents {
  bf16* rows = nullptr;
  std::int64_t page_size = 0;           ///< tokens, a power of two
  const PageId* page_tables = nullptr;  ///< [num_slots, pages_per_slot]
  std::int64_t pages_per_slot = 0;
};

/// What stands between the projections and attention: RMSNorm of the latent row and rotation of the
/// shared key, both stored into the pages, and rotation of every query's last 64 elements.
struct LatentRowsParams {
  std::int64_t max_rows = 0;  ///< the bucket
  std::int64_t num_heads = 0;
  std::int64_t nope_dim = 0;  ///< elements of a query that are not rotated, even
  const layout::LaneControl* control = nullptr;
  const layout::AbortState* abort = nullptr;
  const layout::LaneRow* rows = nullptr;  ///< [max_rows]
  const bf16* q = nullptr;                ///< [max_rows, num_heads, nope_dim + 64]
  const float* kv = nullptr;              ///< [max_rows, kLatentRowDim]
  const float* norm_weight = nullptr;     ///< [kLatentDim]
  /// RopeTable's contents (kernels/rope/op.h) in device memory.
  const float* cos = nullptr;  ///< [max_positions, 32]
  const float* sin = nullptr;  ///< [max_positions, 32]
  std::int64_t max_positions = 0;
  bool interleaved = true;  ///< as in op.h
  float eps = 1e-6F;
  PagedLatents latents;
  bf16* queries = nullptr;  ///< out [max_rows, num_heads, kLatentRowDim], the last 64 of each head
};
/// Writes nothing if the epoch is aborted. Rows must lie in pages of their slot's table and before
/// max_positions. kInvalidArgument for shapes the kernel does not have.
Status launch_latent_rows(const LatentRowsParams& params, device::CudaStream stream);

/// What a lane's attention is sized for: the workspace of all its layers, which
/// launch_attention_schedule() fills once a step.
AttentionBucket latent_bucket(std::int64_t max_rows, std::int64_t max_spans,
                              std::int64_t max_context, std::int64_t num_heads);

/// Causal attention of every row over its own sequence up to and including itself: scores against
/// whole rows, sums of their latent part. The new rows are in the pages.
struct LatentAttentionParams {
  AttentionWorkspace workspace;  ///< of a latent_bucket(), scheduled for this step
  std::int64_t num_sms = 0;      ///< multiprocessors this stream may use
  const layout::AbortState* abort = nullptr;
  const layout::LaneSpan* spans = nullptr;  ///< [max_spans], what was scheduled
  PagedLatents latents;
  const bf16* queries = nullptr;  ///< [max_rows, num_heads, kLatentRowDim]
  bf16* out = nullptr;            ///< [max_rows, num_heads, kLatentDim]
  float scale = 1.0F;             ///< of the scores, above 0
};
/// Computes nothing if the epoch is aborted. A row's bits depend on its own sequence only: not on
/// other spans, the cutting of its prompt into pieces, or the bucket. kInvalidArgument for shapes
/// the kernels do not have.
Status launch_latent_attention(const LatentAttentionParams& params, device::CudaStream stream);

/// Once a process and device, before the first launch or capture: lets the kernels use the shared
/// memory they need.
Status prepare_latent_attention();

}  // namespace fastfd::kernels::cuda
