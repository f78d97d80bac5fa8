#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/attention/paged_kv.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"
#include "kernels/rope/op.h"

namespace fastfd::kernels::cuda {

/// What stands between the QKV projection and attention: RMSNorm of queries and keys, rotation of
/// the first rotary_dim elements in the half-split
/// ("NeoX") form, and the new keys and values stored into the pages.
struct RopeKvWriteParams {
  std::int64_t max_rows = 0;  ///< the bucket
  std::int64_t num_q_heads = 0;
  const layout::LaneControl* control = nullptr;
  const layout::AbortState* abort = nullptr;
  const layout::LaneRow* rows = nullptr;  ///< [max_rows]
  const bf16* qkv = nullptr;  ///< [max_rows, (num_q_heads + 2 kv.num_kv_heads) * kv.head_dim]
  bf16* q = nullptr;          ///< [max_rows, num_q_heads * kv.head_dim]
  PagedKv kv;
  QkNorm norm = QkNorm::kNone;
  const float* q_norm_weight = nullptr;  ///< kPerHead: [head_dim]; kWhole: [q heads * head_dim]
  const float* k_norm_weight = nullptr;  ///< kPerHead: [head_dim]; kWhole: [kv heads * head_dim]
  float* inverse_rms = nullptr;          ///< kWhole: scratch [max_rows, 2], of q and of k
  /// RopeTable's contents (kernels/rope/op.h) in device memory.
  const float* cos = nullptr;  ///< [max_positions, rotary_dim / 2]
  const float* sin = nullptr;  ///< [max_positions, rotary_dim / 2]
  std::int64_t max_positions = 0;
  std::int64_t rotary_dim = 0;  ///< even, at most head_dim
  float eps = 1e-6F;
};
/// Writes nothing if the epoch is aborted. Rows must lie in pages of their slot's table and before
/// max_positions. kInvalidArgument for shapes the kernel does not have.
Status launch_rope_kv_write(const RopeKvWriteParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
