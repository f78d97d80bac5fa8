#pragma once

/// What attention over pages does alike, whatever its rows hold.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "kernels/attention/op.h"

namespace fastfd::kernels {

struct PagedPool {
  DType dtype = DType::kBFloat16;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
};
/// kInvalidArgument for spans without rows, pages outside the pool, page sizes that are no power of
/// two, and pools that are neither bfloat16 nor float32. `op` begins the message.
Status check_paged_spans(const char* op, std::span<const AttentionSpan> spans,
                         const PagedPool& pool);

/// A launch's abort flag, remembered: once seen, the launch has ended.
class AbortPoll {
 public:
  explicit AbortPoll(const std::atomic<bool>* abort) : abort_(abort) {}

  /// Any thread.
  bool requested() {
    if (abort_ != nullptr && abort_->load(std::memory_order_relaxed)) {
      aborted_.store(true, std::memory_order_relaxed);
    }
    return aborted_.load(std::memory_order_relaxed);
  }
  /// kAborted if it was seen.
  Status status(const char* op) const;

 private:
  const std::atomic<bool>* abort_;
  std::atomic<bool> aborted_{false};
};

/// Items begin .. end - 1, counted over all spans, which have `num_items(span)` each:
/// `visit(span, item of the span)` until it returns false.
template <typename NumItems, typename Visit>
void for_each_item(std::span<const AttentionSpan> spans, std::int64_t begin, std::int64_t end,
                   const NumItems& num_items, const Visit& visit) {
  std::int64_t first = 0;
  for (const AttentionSpan& span : spans) {
    const std::int64_t count = num_items(span);
    const std::int64_t last = std::min(end - first, count);
    for (std::int64_t item = std::max<std::int64_t>(begin - first, 0); item < last; ++item) {
      if (!visit(span, item)) {
        return;
      }
    }
    first += count;
  }
}

}  // namespace fastfd::kernels
