#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastfd::device {

/// Memory in the order in which it will be read.
using MemoryRanges = std::vector<std::span<const std::byte>>;

/// How much is worth fetching: a quarter of the last-level cache, which other servers use as well.
/// 2 MiB where the system does not say how large that is.
std::size_t cache_fetch_bytes();

/// The first `max_bytes` of `ranges`; empty ranges are left out.
MemoryRanges first_bytes(const MemoryRanges& ranges, std::size_t max_bytes);

/// Brings weights that a server will read next into its caches while it has nothing else to do:
/// two servers that take turns at one batch then still read from memory at the same time. For one
/// thread.
class CacheFetch {
 public:
  /// Fetches `ranges` until all are or `stop()`, which is asked every few cache lines and must be
  /// cheap. Goes on where it stopped if `id` is that of the call before, and does nothing if that
  /// one came to the end.
  template <typename Stop>
  void run(std::uint64_t id, const MemoryRanges& ranges, Stop stop) {
    if (id != id_) {
      id_ = id;
      range_ = 0;
      offset_ = 0;
    }
    while (range_ < ranges.size() && !stop()) {
      fetch_some(ranges[range_]);
    }
  }

 private:
  void fetch_some(std::span<const std::byte> range);

  std::uint64_t id_ = ~std::uint64_t{0};
  std::size_t range_ = 0;
  std::size_t offset_ = 0;  // in the range
};

}  // namespace fastfd::device
