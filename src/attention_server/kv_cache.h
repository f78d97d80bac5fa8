#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/device/cpu.h"
#include "kernels/attention/op.h"

namespace fastfd::attention_server {

/// Paged keys and values of all layers. Pages are numbered once; page p means p in every layer.
class KvCache {
 public:
  KvCache(std::uint32_t num_layers, std::uint32_t num_pages, std::uint32_t page_size,
          std::uint32_t num_kv_heads, std::uint32_t head_dim, DType dtype);

  kernels::KvPool pool(std::uint32_t layer);

  /// Keys and values of a whole page, in all layers.
  void copy_page(PageId source, PageId target);

  /// Bytes of a cache of this shape, for the start-up arithmetic.
  static std::size_t num_bytes(std::uint32_t num_layers, std::uint32_t num_pages,
                               std::uint32_t page_size, std::uint32_t num_kv_heads,
                               std::uint32_t head_dim, DType dtype);

 private:
  kernels::KvPool shape_;
  std::uint32_t num_layers_;
  std::size_t pool_bytes_;  // keys of one layer
  // Pages that were never used are not resident: the buffer is a fresh anonymous mapping.
  device::HostBuffer buffer_;  // [num_layers][keys, values][pool_bytes_]
};

}  // namespace fastfd::attention_server
