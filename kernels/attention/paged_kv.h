#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"

namespace fastfd::kernels::cuda {

/// KV pages of one layer in device memory and the page tables of all sequences. The pools have the
/// layout of KvPool in kernels/attention/op.h: [num_pages][num_kv_heads][page_size][head_dim].
struct PagedKv {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kBFloat16;  ///< kBFloat16 or kFloat8E4M3
  std::int64_t page_size = 0;      ///< tokens, a power of two
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;            ///< 64, 128 or 256
  const PageId* page_tables = nullptr;  ///< [num_slots, pages_per_slot]
  std::int64_t pages_per_slot = 0;
  /// Of a kFloat8E4M3 pool: a stored number times the scale is the key or value.
  float key_scale = 1.0F;
  float value_scale = 1.0F;
};

/// Whether the GPU kernels take this pool.
inline bool is_supported(const PagedKv& kv) {
  return (kv.dtype == DType::kBFloat16 || kv.dtype == DType::kFloat8E4M3) && kv.page_size > 0 &&
         (kv.page_size & (kv.page_size - 1)) == 0 && kv.num_kv_heads > 0 &&
         (kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256) && kv.pages_per_slot > 0;
}

}  // namespace fastfd::kernels::cuda
