#include "fastfd/device/completion_thread.h"

#include <pthread.h>

#include <utility>

namespace fastfd::device {

CompletionThread::CompletionThread(const CudaDevice& device, std::string name)
    : device_(device), name_(std::move(name)), thread_([this] { run(); }) {}

CompletionThread::~CompletionThread() {
  items_.close();
  thread_.join();
}

void CompletionThread::add(const DeviceEvent& done, std::function<void(const Status&)> then) {
  num_pending_.fetch_add(1);
  items_.push({&done, std::move(then)});
}

void CompletionThread::drain() {
  for (auto left = num_pending_.load(); left != 0; left = num_pending_.load()) {
    num_pending_.wait(left);
  }
}

void CompletionThread::run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  const Status current = device_.make_current();
  while (auto item = items_.pop()) {
    item->then(current ? item->done->synchronize() : current);
    num_pending_.fetch_sub(1);
    num_pending_.notify_all();
  }
}

}  // namespace fastfd::device
