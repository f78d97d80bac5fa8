#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Connection(GatewayCore& core, Socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Serves until the connection closes.
  static void start(GatewayCore& core, Socket socket);

  void check_deadline(std::chrono::steady_clock::time_point now);
  void close_if_idle();
  /// Ends the running request with an error and closes.
  void abort();

 private:
  enum class Phase { kIdle, kReading, kWorking, kLingering };
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;

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
  /// Until `condition` holds; whoever may make it true calls wake().
  template <typename Condition>
  Awaitable<> wait_until(Condition condition);
  void wake() { wake_timer_.cancel(); }

  /// Endpoints that need no body and no waiting.
  HttpResponse answer_at_once(const EndpointMatch& match);
  HttpResponse model_missing() const;
  std::string response_head(const HttpResponse& response) const;
  std::string stream_head() const;
  /// The generation has something to write, or is done.
  void on_progress();

  /// Writes what the socket takes now and keeps the rest. With `bounded`, a client that lets too
  /// much pile up is given up.
  void send(std::string_view head, std::string_view body, std::string_view tail, bool bounded);
  void wait_writable();
  void send_unsent();
  void watch_client();
  void read_ahead();
  /// The client is gone, or hopelessly slow.
  void lost();
  void set_phase(Phase phase, std::optional<std::chrono::milliseconds> timeout);
  void close();

  GatewayCore& core_;
  Socket socket_;
  boost::beast::flat_buffer buffer_;  // received, not yet parsed
  boost::asio::steady_timer wake_timer_;
  std::chrono::steady_clock::time_point deadline_;
  Phase phase_ = Phase::kIdle;

  std::string unsent_;
  bool waiting_writable_ = false;
  bool watching_ = false;
  bool gone_ = false;       // nothing more can be sent
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
