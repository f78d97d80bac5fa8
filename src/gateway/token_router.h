#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "fastfd/core/engine_client.h"

namespace fastfd::gateway {

/// Receives a request's tokens on the gateway thread.
class TokenReceiver {
 public:
  virtual ~TokenReceiver() = default;
  virtual void on_token(std::uint32_t choice, const TokenEvent& event, SteadyTime now) = 0;
  /// After everything that was ready has been handed over: time to write.
  virtual void on_batch_end() = 0;

 private:
  friend class TokenRouter;
  bool in_batch_ = false;
};

/// Carries tokens from the engine's thread to the gateway thread and to whom they belong. However
/// many commits happen meanwhile, at most one wake-up is under way, and a receiver gets all that is
/// ready for it before its on_batch_end().
class TokenRouter final : public TokenSink {
 public:
  /// `wake` is called on the engine's thread; it must lead to a call of deliver() on the gateway
  /// thread.
  explicit TokenRouter(std::function<void()> wake) : wake_(std::move(wake)) {}

  void on_events(std::vector<TokenEvent> events) override;

  // The rest is for the gateway thread.
  void attach(RequestId id, TokenReceiver* receiver, std::uint32_t choice);
  /// Later events of `id` are dropped. Unknown ids are ignored.
  void detach(RequestId id) { routes_.erase(id); }
  void deliver();

 private:
  struct Route {
    TokenReceiver* receiver;
    std::uint32_t choice;
  };

  std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<TokenEvent> pending_;  // guarded by mutex_
  std::unordered_map<RequestId, Route> routes_;
  std::vector<TokenEvent> batch_;  // kept for its capacity
  std::vector<TokenReceiver*> touched_;
};

}  // namespace fastfd::gateway
