#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fastfd/core/engine_client.h"

namespace fastfd::gateway {

/// An engine without a model: every running request gets the next token of its reply in each step,
/// all in one batch, from a thread of the engine's own. After its reply comes an end-of-sequence
/// token; where that may not end it (min_tokens, ignore_eos) the reply begins again.
class FakeEngine final : public EngineClient {
 public:
  using Reply = std::function<std::string(const Request&)>;

  FakeEngine();
  ~FakeEngine() override;
  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  Status submit(Request request, TokenSink* sink) override;
  void abort(RequestId id) override;
  RequestId next_request_id() override;
  EngineState state() const override;
  std::vector<EngineMetric> metrics() const override;

  // What the test wants. Any thread, any time.
  void set_reply(Reply reply);
  void set_reply(const std::string& text);
  void set_step_delay(std::chrono::microseconds delay);
  void set_state(EngineState state);
  /// Requests beyond this many at once are refused with kResourceExhausted.
  void set_max_requests(std::size_t max_requests);
  /// Accepted requests wait as if queued until resume().
  void pause();
  void resume();
  /// Runs exactly one step of a paused engine.
  void step();
  /// Every running request ends in an error after it has had so many tokens.
  void fail_after(std::uint32_t num_tokens);

  // What happened.
  std::vector<Request> submitted() const;
  std::size_t num_running() const;
  std::size_t num_aborted() const;
  /// Blocks until `condition` holds, at most 20 s; false: it never did.
  bool wait_running(std::size_t count) const;
  bool wait_aborted(std::size_t count) const;

 private:
  struct Running {
    Request request;
    TokenSink* sink;
    std::string reply;
    std::uint32_t num_tokens = 0;
    std::size_t at = 0;  // in the reply
  };

  void run();
  std::map<TokenSink*, std::vector<TokenEvent>> make_step();
  TokenEvent next_event(Running& running) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<RequestId, Running> running_;
  std::vector<Request> submitted_;
  Reply reply_;
  std::chrono::microseconds step_delay_{0};
  EngineState state_{true, false, ""};
  std::size_t max_requests_ = 100'000;
  std::uint32_t fail_after_ = 0;  // 0: never
  bool paused_ = false;
  std::size_t single_steps_ = 0;
  std::size_t num_aborted_ = 0;
  RequestId next_id_ = 1;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fastfd::gateway
