#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "fastfd/transport/endpoint.h"

namespace fastfd::transport {

/// End of the patience of one connect call.
class Deadline {
 public:
  explicit Deadline(const ConnectOptions& options)
      : timeout_(options.timeout),
        end_(std::chrono::steady_clock::now() + options.timeout),
        cancel_(options.cancel) {}

  std::chrono::milliseconds timeout() const { return timeout_; }
  bool is_cancelled() const {
    return cancel_ != nullptr && cancel_->load(std::memory_order_acquire);
  }
  bool is_over() const { return std::chrono::steady_clock::now() >= end_; }
  /// How long to block before looking again: short enough to see a cancellation.
  int slice_ms() const {
    constexpr std::chrono::milliseconds kLongest{20};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kLongest).count());
  }

 private:
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* cancel_;
};

}  // namespace fastfd::transport
