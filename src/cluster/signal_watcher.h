#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace fastfd::cluster {

/// Turns SIGINT and SIGTERM into calls on a thread of its own. Construct it before any other thread
/// exists, so that all of them inherit the blocked mask. Without a handler (while weights load)
/// a signal ends the process at once with status 0: there is nothing to lose yet.
class SignalWatcher {
 public:
  SignalWatcher();
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  /// Replaces the handler; nullptr removes it. Returns when no call of the old one is running, so
  /// what it refers to may go afterwards. Must not be called by a handler.
  void set_handler(std::function<void(int signal)> handler);

 private:
  void watch();

  std::mutex mutex_;
  std::function<void(int)> handler_;
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace fastfd::cluster
