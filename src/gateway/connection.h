#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/client_socket.h"
#include "gateway/endpoints.h"
#include "gateway/gateway_core.h"
#include "gateway/generation.h"

namespace fastfd::gateway {

/// A complete HTTP request.
struct HttpRequest {
  std::string method;
  std::string target;
  std::string body;
  bool http_1_1 = true;
  bool keep_alive = true;
};

/// One client connection: reads requests one after the other, answers each before it reads the next
/// (so pipelining is safe), and notices at once when the client goes away while it waits for
/// tokens. A coroutine reads and decides; tokens are written as they come, outside of it, so that a
/// token costs one system call and no context of its own. Gateway thread only.
///
/// g++ 12 destroys some temporaries among the arguments of a co_await twice: arguments that own
/// memory are named variables here, moved or passed by reference.
class Connection final : public ClientSocket {
 public:
  Connection(GatewayCore& core, Socket socket);
  ~Connection() override;

  /// Serves until the connection closes.
  static void start(GatewayCore& core, boost::asio::ip::tcp::socket socket);

  void check_deadline(std::chrono::steady_clock::time_point now);
  void close_if_idle();
  /// Ends the running request with an error and closes.
  void abort();

 private:
  enum class Phase { kIdle, kReading, kWorking, kLingering };

  void on_lost() override;
  bool watches() const override { return generation_ != nullptr && !generation_->done(); }
  std::string_view filler() const override;

  Awaitable<> run();
  Awaitable<> serve_request();
  /// Waits for a first byte; false if there will be none.
  Awaitable<bool> wait_for_request();
  /// nullopt: the connection is of no more use, and what there was to say has been said.
  Awaitable<std::optional<HttpRequest>> read_request();
  Awaitable<> answer(HttpRequest request);
  /// The response that remains to be written: none after a stream, or when the client is gone.
  Awaitable<std::optional<HttpResponse>> generate(HttpRequest request, bool chat);
  Awaitable<std::optional<HttpResponse>> answer_text(HttpRequest request, Endpoint endpoint);
  /// Runs `work` here, or on a worker thread when a body of `num_bytes` may take long. Errors that
  /// it throws become a response, which is returned.
  Awaitable<std::optional<HttpResponse>> offload(std::size_t num_bytes,
                                                 const std::function<void()>& work);
  Awaitable<> respond(HttpResponse response);
  /// Answers a request that was not read to its end, and closes so that the client can see it.
  Awaitable<> refuse(HttpResponse response);
  /// Endpoints that need no body and no waiting.
  HttpResponse answer_at_once(const EndpointMatch& match);
  HttpResponse model_missing() const;
  /// The generation has something to write, or is done.
  void on_progress();

  void set_phase(Phase phase, std::optional<std::chrono::milliseconds> timeout);

  GatewayCore& core_;
  Phase phase_ = Phase::kIdle;
  bool timed_out_ = false;  // while reading a request
  bool keep_alive_ = true;  // after the current response

  // Of the request being answered.
  const char* endpoint_label_ = "unknown";
  bool head_only_ = false;
  bool http_1_1_ = true;
  bool stream_begun_ = false;
  std::unique_ptr<Generation> generation_;
};

}  // namespace fastfd::gateway
