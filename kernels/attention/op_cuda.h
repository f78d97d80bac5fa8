#pragma once

#include <cstddef>
#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/attention/paged_kv.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// What the kernels are sized for: the largest lane, or one bucket.
struct AttentionBucket {
  std::int64_t max_rows = 0;
  std::int64_t max_spans = 0;
  std::int64_t max_context = 0;  ///< tokens of a sequence, the step's own included
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  /// Latent attention (kernels/latent_attention/op_cuda.h), whose own function makes buckets: one
  /// KV head, whose values have head_dim elements.
  bool is_latent = false;
};

/// Device memory that belongs to one lane: how its step is cut into work, and partial results of
/// rows whose context is cut over several warps.
struct AttentionWorkspace {
  AttentionBucket bucket;
  /// Most (row, split of its context) pairs that partial results have room for. What does not fit
  /// is computed by one block a sequence instead: slower, with the same bits.
  std::int64_t max_row_splits = 0;
  std::byte* data = nullptr;  ///< [num_bytes()], 256-byte aligned

  /// Room for `bucket`, but for no more than `row_split_limit` row splits, each of which costs
  /// num_q_heads * (head_dim + 2) floats, and of latent attention for no more than 256 MiB of them.
  static AttentionWorkspace of(const AttentionBucket& bucket, std::int64_t row_split_limit = 8192);
  std::size_t num_bytes() const;
};

/// Cuts the spans of a (step, lane) into work. Once a step, in front of its first layer; one block.
struct AttentionScheduleParams {
  AttentionWorkspace workspace;
  const layout::LaneControl* control = nullptr;
  const layout::LaneSpan* spans = nullptr;  ///< [max_spans]
};
Status launch_attention_schedule(const AttentionScheduleParams& params, device::CudaStream stream);

/// Causal attention of every row over its own sequence up to and including itself: prefill pieces
/// and decode rows alike. The new keys and values are in the pages (kernels/rope/op_cuda.h).
struct PagedAttentionParams {
  AttentionWorkspace workspace;  ///< scheduled for this step
  std::int64_t num_sms = 0;      ///< multiprocessors this stream may use
  const layout::AbortState* abort = nullptr;
  const layout::LaneSpan* spans = nullptr;  ///< [max_spans], what was scheduled
  PagedKv kv;
  const bf16* q = nullptr;  ///< [max_rows, num_q_heads * head_dim]
  bf16* out = nullptr;      ///< [max_rows, num_q_heads * head_dim]
  float scale = 1.0F;       ///< of the scores, above 0, usually head_dim^-0.5
};
/// Computes nothing if the epoch is aborted. A row's bits depend on its own sequence only: not on
/// other spans, the cutting of its prompt into pieces, or the bucket. kInvalidArgument for shapes
/// the kernels do not have.
Status launch_paged_attention(const PagedAttentionParams& params, device::CudaStream stream);

/// Once a process and device, before the first launch or capture: lets the kernels use the shared
/// memory they need.
Status prepare_paged_attention();

}  // namespace fastfd::kernels::cuda
