#include "attention_server/kv_cache.h"

#include <cstring>

namespace fastfd::attention_server {

std::size_t KvCache::num_bytes(std::uint32_t num_layers, std::uint32_t num_pages,
                               std::uint32_t page_size, std::uint32_t num_kv_heads,
                               std::uint32_t head_dim, DType dtype) {
  return std::size_t{2} * num_layers * num_pages * page_size * num_kv_heads * head_dim *
         dtype_bytes(dtype);
}

KvCache::KvCache(std::uint32_t num_layers, std::uint32_t num_pages, std::uint32_t page_size,
                 std::uint32_t num_kv_heads, std::uint32_t head_dim, DType dtype)
    : num_layers_(num_layers),
      pool_bytes_(num_bytes(1, num_pages, page_size, num_kv_heads, head_dim, dtype) / 2),
      buffer_(num_bytes(num_layers, num_pages, page_size, num_kv_heads, head_dim, dtype)) {
  shape_.dtype = dtype;
  shape_.num_pages = num_pages;
  shape_.page_size = page_size;
  shape_.num_kv_heads = num_kv_heads;
  shape_.head_dim = head_dim;
}

kernels::KvPool KvCache::pool(std::uint32_t layer) {
  kernels::KvPool pool = shape_;
  pool.keys = buffer_.data() + pool_bytes_ * 2 * layer;
  pool.values = buffer_.data() + pool_bytes_ * (2 * std::size_t{layer} + 1);
  return pool;
}

void KvCache::copy_page(PageId source, PageId target) {
  const std::size_t page_bytes = pool_bytes_ / static_cast<std::size_t>(shape_.num_pages);
  for (std::size_t half = 0; half < std::size_t{2} * num_layers_; ++half) {
    std::byte* pool = buffer_.data() + half * pool_bytes_;
    std::memcpy(pool + target * page_bytes, pool + source * page_bytes, page_bytes);
  }
}

}  // namespace fastfd::attention_server
