#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "fastfd/core/blocking_queue.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {

/// Tells the host what a GPU has finished, in the order in which it was asked to watch: a thread
/// that waits for one event after the other. add() and drain() are for one thread.
class CompletionThread {
 public:
  /// `name` is the thread's, at most 15 characters.
  CompletionThread(const CudaDevice& device, std::string name);
  ~CompletionThread();  ///< waits for all that was added
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  /// Calls `then` on the thread once `done`, recorded already, has passed; its status is the
  /// event's. The event must live, and not be recorded again, until then.
  void add(const DeviceEvent& done, std::function<void(const Status&)> then);

  /// Blocks until everything added has been called.
  void drain();
  std::uint32_t num_pending() const { return num_pending_.load(); }

 private:
  struct Item {
    const DeviceEvent* done;
    std::function<void(const Status&)> then;
  };
  void run();

  const CudaDevice device_;
  const std::string name_;
  BlockingQueue<Item> items_;
  std::atomic<std::uint32_t> num_pending_{0};
  std::thread thread_;
};

}  // namespace fastfd::device
