#pragma once

#include <cstdint>
#include <map>

namespace fastfd {

/// How much of a time line is covered by intervals that overlap and come out of order: what several
/// lanes do at once is counted once. Not thread-safe.
class IntervalUnion {
 public:
  /// Intervals that end more than `horizon` before the latest end are forgotten (and stay counted):
  /// none may come so late. Units are the caller's.
  explicit IntervalUnion(std::uint64_t horizon) : horizon_(horizon) {}

  /// Covers [begin, end); nothing if that is empty.
  void add(std::uint64_t begin, std::uint64_t end);

  /// Covered since construction.
  std::uint64_t covered() const { return covered_; }

 private:
  const std::uint64_t horizon_;
  std::uint64_t covered_ = 0;
  std::map<std::uint64_t, std::uint64_t> ends_;  // disjoint, not touching: end by begin
};

}  // namespace fastfd
