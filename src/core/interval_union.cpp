#include "fastfd/core/interval_union.h"

#include <algorithm>
#include <iterator>

namespace fastfd {

void IntervalUnion::add(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) {
    return;
  }
  // All that overlap or touch [begin, end) become one.
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) {
    --next;
  }
  while (next != ends_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    covered_ -= next->second - next->first;
    next = ends_.erase(next);
  }
  covered_ += end - begin;
  ends_.emplace_hint(next, begin, end);

  const std::uint64_t latest = std::prev(ends_.end())->second;
  while (ends_.begin()->second + horizon_ < latest) {
    ends_.erase(ends_.begin());
  }
}

}  // namespace fastfd
