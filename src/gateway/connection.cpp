#include "gateway/connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <iterator>
#include <utility>

#include "gateway/http_head.h"

namespace fastfd::gateway {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::steady_clock;

/// How long a refused client may go on sending before the connection is cut.
constexpr std::chrono::milliseconds kLingerTime{2000};

HttpResponse error_response(int status, std::string message, std::string code) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = status >= 500 ? "server_error" : error.type;
  error.code = std::move(code);
  return to_response(error, {});
}

/// What to tell a client whose request could not be read; nullopt: it is gone.
std::optional<HttpResponse> explain_read_error(const error_code& error,
                                               const GatewayOptions& options) {
  if (error == http::error::body_limit) {
    return error_response(413,
                          fmt::format("The request body is larger than the limit of {} bytes.",
                                      options.max_body_bytes),
                          "request_too_large");
  }
  if (error == http::error::header_limit) {
    return error_response(431,
                          fmt::format("The request's header is larger than the limit of {} bytes.",
                                      options.max_header_bytes),
                          "header_too_large");
  }
  const bool malformed = error.category() == make_error_code(http::error::bad_method).category() &&
                         error != http::error::end_of_stream &&
                         error != http::error::partial_message;
  if (!malformed) {
    return std::nullopt;
  }
  return error_response(400, fmt::format("This is not a valid HTTP request: {}.", error.message()),
                        "bad_http");
}

}  // namespace

Connection::Connection(GatewayCore& core, Socket socket)
    : ClientSocket(core.options(), std::move(socket)), core_(core) {
  core_.add(this);
}

Connection::~Connection() {
  generation_.reset();
  core_.remove(this);
}

void Connection::start(GatewayCore& core, Socket socket) {
  auto connection = std::make_shared<Connection>(core, std::move(socket));
  asio::co_spawn(
      core.io(), [connection]() -> asio::awaitable<void> { return connection->run(); },
      asio::detached);
}

void Connection::set_phase(Phase phase, std::optional<std::chrono::milliseconds> timeout) {
  phase_ = phase;
  set_deadline(timeout ? steady_clock::now() + *timeout : kNever);
}

void Connection::check_deadline(steady_clock::time_point now) {
  if (now < deadline() || gone()) {
    return;
  }
  set_deadline(kNever);
  if (phase_ == Phase::kReading) {
    timed_out_ = true;
    error_code ignored;
    socket().cancel(ignored);
  } else if (phase_ == Phase::kWorking) {
    lost();
  } else {
    close();
  }
}

void Connection::close_if_idle() {
  keep_alive_ = false;
  if (phase_ == Phase::kIdle) {
    close();
  }
}

void Connection::abort() {
  keep_alive_ = false;
  if (generation_) {
    generation_->stop(
        unavailable("The server shut down before the answer was complete.", "draining"));
  }
  // A response that waits for a slow reader is cut, and so is one that has not begun.
  if (!generation_ || !all_sent()) {
    lost();
  }
}

void Connection::on_lost() {
  if (generation_) {
    core_.metrics().disconnects().Increment();
    generation_->cancel();
  }
}

/// An event stream has comments, HTTP/1.1 interim responses (RFC 9110, 15.2: clients skip those
/// that they don't know). HTTP/1.0 has neither before the stream, and its clients don't close by
/// halves: proxies that speak it close when their own client has left.
std::string_view Connection::filler() const {
  if (stream_begun_) {
    return http_1_1_ ? "3\r\n:\n\n\r\n" : ":\n\n";
  }
  return http_1_1_ ? "HTTP/1.1 102 Processing\r\n\r\n" : "";
}

Connection::Awaitable<> Connection::run() {
  try {
    while (keep_alive_ && !gone()) {
      co_await serve_request();
    }
  } catch (const std::exception& error) {
    spdlog::error("gateway: connection closed: {}", error.what());
  }
  close();
}

Connection::Awaitable<> Connection::serve_request() {
  endpoint_label_ = "unknown";
  head_only_ = false;
  http_1_1_ = true;
  timed_out_ = false;
  stream_begun_ = false;
  const bool arrives = co_await wait_for_request();
  if (!arrives) {
    keep_alive_ = false;
    co_return;
  }
  std::optional<HttpRequest> request = co_await read_request();
  if (!request) {
    keep_alive_ = false;
    co_return;
  }
  set_phase(Phase::kWorking, std::nullopt);
  co_await answer(std::move(*request));
}

Connection::Awaitable<bool> Connection::wait_for_request() {
  if (buffer().size() > 0) {
    co_return true;
  }
  const bool is_late = core_.is_late(this);
  if (core_.draining() && !is_late) {
    co_return false;  // accepted just before
  }
  buffer().shrink_to_fit();
  set_phase(Phase::kIdle, is_late ? core_.options().request_timeout : core_.options().idle_timeout);
  error_code error;
  co_await socket().async_wait(Socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
  co_return !error && !gone();
}

Connection::Awaitable<std::optional<HttpRequest>> Connection::read_request() {
  const GatewayOptions& options = core_.options();
  http::request_parser<http::string_body> parser;
  parser.header_limit(options.max_header_bytes);
  parser.body_limit(options.max_body_bytes);
  set_phase(Phase::kReading, options.request_timeout);
  error_code error;
  co_await http::async_read_header(socket(), buffer(), parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  if (!error) {
    http_1_1_ = parser.get().version() >= 11;
    const auto expect = parser.get()[http::field::expect];
    if (!expect.empty() && !boost::beast::iequals(expect, "100-continue")) {
      HttpResponse response = error_response(417, "Expect takes 100-continue only.", "bad_http");
      co_await refuse(std::move(response));
      co_return std::nullopt;
    }
    if (!expect.empty() && http_1_1_ && !parser.is_done()) {
      send("HTTP/1.1 100 Continue\r\n\r\n", {}, {}, false);
    }
    set_phase(Phase::kReading, options.request_timeout);
    co_await http::async_read(socket(), buffer(), parser,
                              asio::redirect_error(asio::use_awaitable, error));
  }
  if (timed_out_ && !gone()) {
    HttpResponse response = error_response(
        408,
        fmt::format("The request was not complete within {} ms.", options.request_timeout.count()),
        "request_timeout");
    co_await refuse(std::move(response));
    co_return std::nullopt;
  }
  if (error) {
    std::optional<HttpResponse> response = explain_read_error(error, options);
    if (response) {
      co_await refuse(std::move(*response));
    }
    co_return std::nullopt;
  }
  auto& message = parser.get();
  HttpRequest request;
  request.method = message.method_string();
  request.target = origin_form({message.target().data(), message.target().size()});
  keep_alive_ = message.keep_alive() && !core_.draining();
  request.body = std::move(message.body());
  co_return request;
}

Connection::Awaitable<> Connection::answer(HttpRequest request) {
  const EndpointMatch match = match_endpoint(request.target);
  endpoint_label_ = match.label;
  head_only_ = request.method == "HEAD";
  std::optional<HttpResponse> response = answer_by_method(match, request.method, request.target);
  if (!response) {
    switch (match.endpoint) {
      case Endpoint::kChatCompletions:
      case Endpoint::kCompletions:
        response =
            co_await generate(std::move(request), match.endpoint == Endpoint::kChatCompletions);
        break;
      case Endpoint::kTokenize:
      case Endpoint::kDetokenize:
        response = co_await answer_text(std::move(request), match.endpoint);
        break;
      default:
        response = answer_at_once(match);
    }
  }
  if (response) {
    co_await respond(std::move(*response));
  }
}

HttpResponse Connection::model_missing() const {
  return to_response(
      unavailable("The server is starting: the model is not loaded yet.", "not_ready"),
      core_.options().retry_after);
}

HttpResponse Connection::answer_at_once(const EndpointMatch& match) {
  HttpResponse response;
  if (match.endpoint == Endpoint::kHealth) {
    response.body = R"({"status":"ok"})";
    return response;
  }
  if (match.endpoint == Endpoint::kMetrics) {
    const EngineClient* engine = core_.engine();
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = core_.metrics().to_text(engine != nullptr ? engine->metrics()
                                                              : std::vector<EngineMetric>{});
    return response;
  }
  if (match.endpoint == Endpoint::kReady) {
    if (const auto error = core_.not_ready()) {
      return to_response(*error, core_.options().retry_after);
    }
    response.body = R"({"status":"ready"})";
    return response;
  }
  const auto model = core_.model();
  if (model == nullptr) {
    return model_missing();
  }
  try {
    return match.endpoint == Endpoint::kModels
               ? list_models(*model, core_.created())
               : describe_model(*model, match.argument, core_.created());
  } catch (const RequestRejected& rejected) {
    return to_response(rejected.error(), core_.options().retry_after);
  }
}

Connection::Awaitable<std::optional<HttpResponse>> Connection::offload(
    std::size_t num_bytes, const std::function<void()>& work) {
  std::optional<HttpResponse> failure;
  const auto guarded = [this, &failure, &work] {
    try {
      work();
    } catch (const RequestRejected& rejected) {
      failure = to_response(rejected.error(), core_.options().retry_after);
    } catch (const std::exception& error) {
      spdlog::error("gateway: a request failed: {}", error.what());
      failure = error_response(500, "The server could not process the request; see its log.",
                               "internal_error");
    }
  };
  if (num_bytes <= core_.options().max_inline_body_bytes) {
    guarded();
    co_return failure;
  }
  bool finished = false;
  asio::post(core_.workers(), [this, &guarded, &finished] {
    guarded();
    asio::post(core_.io(), [this, &finished] {
      finished = true;
      wake();
    });
  });
  co_await wait_until([&finished] { return finished; });
  co_return failure;
}

Connection::Awaitable<std::optional<HttpResponse>> Connection::answer_text(HttpRequest request,
                                                                           Endpoint endpoint) {
  const auto model = core_.model();
  if (model == nullptr) {
    co_return model_missing();
  }
  HttpResponse response;
  const std::function<void()> work = [&] {
    response = endpoint == Endpoint::kTokenize ? tokenize(request.body, *model)
                                               : detokenize(request.body, *model);
  };
  std::optional<HttpResponse> failure = co_await offload(request.body.size(), work);
  if (!failure) {
    failure = std::move(response);
  }
  co_return failure;
}

Connection::Awaitable<std::optional<HttpResponse>> Connection::generate(HttpRequest http_request,
                                                                        bool chat) {
  GenerationContext context;
  context.arrival = steady_clock::now();
  context.model = core_.model();
  std::optional<ApiError> error = core_.not_ready();
  if (error) {
    co_return to_response(*error, core_.options().retry_after);
  }
  GenerationRequest request;
  const std::function<void()> work = [&] {
    request = read_generation_request(http_request.body, chat, *context.model,
                                      core_.options().max_sequences_per_request);
  };
  std::optional<HttpResponse> failure = co_await offload(http_request.body.size(), work);
  if (gone() || failure) {
    co_return failure;
  }
  http_request = {};
  buffer().shrink_to_fit();
  context.engine = core_.engine();
  if (context.engine == nullptr) {
    co_return to_response(unavailable("The server is shutting down.", "draining"),
                          core_.options().retry_after);
  }
  context.router = &core_.router();
  context.metrics = &core_.metrics();
  context.random_seed = core_.random();
  generation_ = std::make_unique<Generation>(std::move(request), std::move(context),
                                             [this] { on_progress(); });
  error = generation_->start();
  if (!error) {
    core_.metrics().active_requests().Increment();
    watch_client();
    co_await wait_until([this] { return gone() || generation_->done(); });
    core_.metrics().active_requests().Decrement();
    error = generation_->error();
  }
  const std::unique_ptr<Generation> generation = std::move(generation_);
  if (stream_begun_) {
    core_.metrics().count_response(endpoint_label_, 200);
    co_await wait_until([this] { return gone() || all_sent(); });
    co_return std::nullopt;
  }
  if (gone()) {
    co_return std::nullopt;
  }
  HttpResponse response;
  if (error) {
    response = to_response(*error, core_.options().retry_after);
  } else {
    response.body = generation->body();
  }
  co_return response;
}

void Connection::on_progress() {
  const bool done = generation_->done();
  if (!generation_->stream() || (!stream_begun_ && generation_->error())) {
    if (done) {
      wake();  // the coroutine writes the response
    }
    return;
  }
  if (done) {
    generation_->append_last_events();
  }
  std::string& events = generation_->events();
  if (!events.empty()) {
    std::string head;
    if (!stream_begun_) {
      stream_begun_ = true;
      keep_alive_ = keep_alive_ && http_1_1_ && !core_.draining();
      head = stream_head(http_1_1_, keep_alive_);
    }
    if (http_1_1_) {
      fmt::format_to(std::back_inserter(head), "{:x}\r\n", events.size());
    }
    std::string_view tail = http_1_1_ ? "\r\n" : "";
    if (http_1_1_ && done) {
      tail = "\r\n0\r\n\r\n";
    }
    send(head, events, tail, /*bounded=*/true);
    events.clear();
  }
  if (done) {
    wake();
  }
}

Connection::Awaitable<> Connection::respond(HttpResponse response) {
  if (core_.draining()) {
    keep_alive_ = false;
  }
  core_.metrics().count_response(endpoint_label_, response.status);
  send(response_head(response, http_1_1_, keep_alive_),
       head_only_ ? std::string_view() : response.body, {}, false);
  co_await wait_until([this] { return gone() || all_sent(); });
}

Connection::Awaitable<> Connection::refuse(HttpResponse response) {
  set_phase(Phase::kWorking, std::nullopt);
  keep_alive_ = false;
  co_await respond(std::move(response));
  // Closing with unread input would reset the connection, and the client might never read why.
  set_phase(Phase::kLingering, kLingerTime);
  error_code error;
  socket().shutdown(Socket::shutdown_send, error);
  std::array<char, kReadBytes> discarded{};
  while (!error && !gone()) {
    co_await socket().async_read_some(asio::buffer(discarded),
                                      asio::redirect_error(asio::use_awaitable, error));
  }
}

}  // namespace fastfd::gateway
