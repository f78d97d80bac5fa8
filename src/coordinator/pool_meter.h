#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "fastfd/core/request.h"

namespace fastfd::coordinator {

/// What a server did with its time, summed over a pool.
struct WorkTime {
  double compute_us = 0.0;
  double wait_us = 0.0;
};

/// Shares of wall time that the servers of one pool computed and waited, over the last seconds.
class PoolMeter {
 public:
  explicit PoolMeter(std::uint32_t num_servers) : num_servers_(num_servers) {}

  void add(const WorkTime& work, SteadyTime now);
  /// Fractions of num_servers x elapsed time; compute_us and wait_us of the result are shares in
  /// 0..1, the rest is idleness.
  WorkTime shares(SteadyTime now) const;

 private:
  static constexpr std::chrono::seconds kWindow{10};
  static constexpr std::chrono::seconds kSpacing{1};

  struct Sample {
    SteadyTime time;
    WorkTime total;  // before what came in at `time`
  };
  std::uint32_t num_servers_;
  WorkTime total_;
  std::deque<Sample> samples_;  // ascending time; the first is the newest that left the window
};

}  // namespace fastfd::coordinator
