#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace fastfd::cluster {

/// Who sent a signal matters to those that get one order on two ways.
struct Signal {
  int number = 0;
  bool from_parent = false;  ///< sent by the parent process: a launcher passes on what it was told
};

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
  void set_handler(std::function<void(const Signal&)> handler);

 private:
  void watch();

  std::mutex mutex_;
  std::function<void(const Signal&)> handler_;
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace fastfd::cluster
