#pragma once

/// What the launchers share: splitting work over a stream's workers, and scratch that stays.

#include <cstddef>
#include <cstdint>

#include "fastfd/device/cpu.h"

namespace fastfd::kernels::simd {

/// Operators with less work than this run on the caller alone: waking a worker costs some 10 us,
/// one that is awake a fraction of one.
constexpr double min_parallel_microseconds(bool workers_are_awake) {
  return workers_are_awake ? 4.0 : 40.0;
}

/// Rough time of one core for `num_flops` and `num_bytes` of memory, to decide about splitting.
constexpr double estimated_microseconds(double num_flops, double num_bytes) {
  constexpr double kFlopsPerMicrosecond = 1e5;
  constexpr double kBytesPerMicrosecond = 3e4;
  return num_flops / kFlopsPerMicrosecond + num_bytes / kBytesPerMicrosecond;
}

/// Runs body(begin, end) over [0, count), split over the workers if that pays. Allocates nothing.
template <typename Body>
void split(const device::CpuStream& stream, std::int64_t count, std::int64_t grain,
           double microseconds, const Body& body) {
  if (stream.workers == nullptr ||
      microseconds < min_parallel_microseconds(stream.workers->is_awake())) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  stream.workers->parallel_for(static_cast<std::size_t>(count), static_cast<std::size_t>(grain),
                               [&body](std::size_t begin, std::size_t end) {
                                 body(static_cast<std::int64_t>(begin),
                                      static_cast<std::int64_t>(end));
                               });
}

/// The first `num` elements of `buffer`, which grows by doubling. Contents are lost on growth.
template <typename T>
T* reserve(device::HostBuffer& buffer, std::int64_t num) {
  const std::size_t num_bytes = static_cast<std::size_t>(num) * sizeof(T);
  if (buffer.num_bytes() < num_bytes) {
    const std::size_t doubled = 2 * buffer.num_bytes();
    buffer = device::HostBuffer(num_bytes > doubled ? num_bytes : doubled);
  }
  return buffer.as<T>();
}

}  // namespace fastfd::kernels::simd
