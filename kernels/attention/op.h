#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// KV pages of one layer. Key and value of (page, kv head, offset) are rows of head_dim elements:
/// [num_pages][num_kv_heads][page_size][head_dim], keys and values in separate pools.
struct KvPool {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat32
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;  ///< tokens, a power of two
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// Consecutive rows of one sequence: a prefill piece, or one decode row.
struct AttentionSpan {
  std::int64_t first_row = 0;       ///< into qkv and out
  std::int64_t num_rows = 0;        ///< at least 1
  std::int64_t start_position = 0;  ///< position of the first row; the pool holds all before it
  const PageId* pages = nullptr;    ///< page table, covers start_position + num_rows tokens
};

/// Writes the new keys and values into the pages, then causal attention of every row over its own
/// sequence up to and including itself, or over the last `window` tokens of that.
struct PagedAttentionParams {
  std::int64_t num_q_heads = 0;  ///< a multiple of pool.num_kv_heads
  const float* qkv = nullptr;    ///< [rows, (num_q_heads + 2 num_kv_heads) * head_dim], rotated
  KvPool pool;
  std::span<const AttentionSpan> spans;  ///< disjoint row ranges
  float* out = nullptr;                  ///< [rows, num_q_heads * head_dim]
  float scale = 1.0F;                    ///< of the scores, usually head_dim^-0.5
  std::int64_t window = 0;               ///< tokens that a row sees, itself included; 0: all
  /// [num_q_heads] or nullptr: a logit a head that takes part in the softmax and adds no value
  /// (attention sinks, arXiv:2309.17453, as gpt-oss learns them).
  const float* sinks = nullptr;
  /// Polled at least every 64 rows; true ends the launch with kAborted. nullptr: never.
  const std::atomic<bool>* abort = nullptr;
};

/// A row's result depends on its own sequence only: not on other spans, the cutting of a prompt
/// into pieces, or the number of threads.
Status launch_paged_attention(const PagedAttentionParams& params, const device::CpuStream& stream);
void reference_paged_attention(const PagedAttentionParams& params);

}  // namespace fastfd::kernels
