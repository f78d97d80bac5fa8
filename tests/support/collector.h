#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fastfd/core/engine_client.h"

namespace fastfd::testing {

/// Keeps what an engine emits, by request. Any thread.
class Collector final : public TokenSink {
 public:
  struct Answer {
    std::vector<TokenEvent> tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };

  void on_events(std::vector<TokenEvent> events) override {
    const std::lock_guard lock(mutex_);
    for (auto& event : events) {
      Answer& answer = answers_[event.request];
      if (event.finish != FinishReason::kNone) {
        answer.finish = event.finish;
        answer.error = event.error;
        ++num_finished_;
      }
      if (event.token != kNoToken) {
        answer.tokens.push_back(std::move(event));
      }
    }
    changed_.notify_all();
  }

  /// False if fewer than `count` requests have ended after `timeout`.
  bool wait_finished(std::size_t count, std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return num_finished_ >= count; });
  }

  /// False if the request has no token after `timeout`.
  bool wait_token(RequestId id, std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return !answers_[id].tokens.empty(); });
  }

  Answer take(RequestId id) {
    const std::lock_guard lock(mutex_);
    return std::move(answers_[id]);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
  std::size_t num_finished_ = 0;
};

}  // namespace fastfd::testing
