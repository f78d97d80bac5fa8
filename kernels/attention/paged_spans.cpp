#include "kernels/attention/paged_spans.h"

#include <fmt/format.h>

#include <bit>

namespace fastfd::kernels {

Status check_paged_spans(const char* op, std::span<const AttentionSpan> spans,
                         const PagedPool& pool) {
  if (pool.page_size < 1 || !std::has_single_bit(static_cast<std::uint64_t>(pool.page_size))) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: page size {} is no power of two", op, pool.page_size)};
  }
  if (pool.dtype != DType::kBFloat16 && pool.dtype != DType::kFloat32) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: the pool must be bfloat16 or float32", op)};
  }
  for (const AttentionSpan& span : spans) {
    if (span.num_rows < 1 || span.start_position < 0) {
      return {StatusCode::kInvalidArgument, fmt::format("{}: a span of {} rows at position {}", op,
                                                        span.num_rows, span.start_position)};
    }
    const std::int64_t num_tokens = span.start_position + span.num_rows;
    const std::int64_t num_pages = (num_tokens + pool.page_size - 1) / pool.page_size;
    for (std::int64_t i = 0; i < num_pages; ++i) {
      if (span.pages[i] >= pool.num_pages) {
        return {StatusCode::kInvalidArgument, fmt::format("{}: page {} is outside the pool of {}",
                                                          op, span.pages[i], pool.num_pages)};
      }
    }
  }
  return Status::ok();
}

Status AbortPoll::status(const char* op) const {
  if (aborted_.load(std::memory_order_relaxed)) {
    return {StatusCode::kAborted, fmt::format("{}: the epoch was abandoned", op)};
  }
  return Status::ok();
}

}  // namespace fastfd::kernels
