#include "fastfd/device/cache_fetch.h"

#include <unistd.h>

#include <algorithm>

namespace fastfd::device {

std::size_t cache_fetch_bytes() {
  constexpr std::size_t kUnknown = std::size_t{2} << 20U;
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long num_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return num_bytes > 0 ? static_cast<std::size_t>(num_bytes) / 4 : kUnknown;
#else
  return kUnknown;
#endif
}

MemoryRanges first_bytes(const MemoryRanges& ranges, std::size_t max_bytes) {
  MemoryRanges first;
  for (const auto& range : ranges) {
    const auto taken = range.first(std::min(range.size(), max_bytes));
    max_bytes -= taken.size();
    if (!taken.empty()) {
      first.push_back(taken);
    }
  }
  return first;
}

void CacheFetch::fetch_some(std::span<const std::byte> range) {
  constexpr std::size_t kLineBytes = 64;
  constexpr std::size_t kAtOnce = 64 * kLineBytes;
  const std::size_t end = std::min(offset_ + kAtOnce, range.size());
  // Loads, since a core drops most of so many prefetches: it has few places for lines under way.
  for (; offset_ < end; offset_ += kLineBytes) {
    static_cast<void>(*static_cast<const volatile std::byte*>(range.data() + offset_));
  }
  if (offset_ >= range.size()) {
    ++range_;
    offset_ = 0;
  }
}

}  // namespace fastfd::device
