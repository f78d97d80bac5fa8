#include "bench/http_client.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "bench/openai_api.h"
#include "bench/stream_reader.h"

namespace fastfd::bench {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

template <typename AnyRequest>
void HttpClient::set_common_fields(AnyRequest& request) const {
  request.set(http::field::host, target_.url.authority());
  if (!target_.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + target_.api_key);
  }
}

asio::awaitable<void> HttpClient::post_streaming(std::string path, const std::string& body,
                                                 RequestRecord& record) {
  Request request{http::verb::post, target_.url.prefix + path, 11};
  set_common_fields(request);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::accept, "text/event-stream");
  request.body() = body;
  request.prepare_payload();

  const auto deadline = Clock::now() + target_.timeout;
  bool try_again = true;
  while (try_again) {
    std::unique_ptr<Connection> connection = take_idle();
    const bool reused = connection != nullptr;
    if (!reused) {
      connection = std::make_unique<Connection>(io_);
    }
    connection->stream.expires_at(deadline);
    if (!reused) {
      beast::error_code error;
      co_await connect(*connection, error);
      if (error) {
        const bool timed_out = error == beast::error::timeout;
        fail(record, timed_out ? FailureKind::kTimeout : FailureKind::kConnect, error.message());
        co_return;
      }
    }
    // A server may close a kept connection just as a request is sent on it: not a failure.
    const bool unanswered = co_await exchange(*connection, request, record);
    try_again = unanswered && reused;
    if (unanswered && !reused) {
      fail(record, FailureKind::kBrokenStream, "the connection was closed without an answer");
    }
    if (record.ok() && connection->stream.socket().is_open()) {
      idle_.push_back(std::move(connection));
    }
  }
}

asio::awaitable<void> HttpClient::connect(Connection& connection, beast::error_code& error) {
  co_await connection.stream.async_connect(target_.endpoints,
                                           asio::redirect_error(asio::use_awaitable, error));
  if (!error) {
    beast::error_code ignored;
    connection.stream.socket().set_option(tcp::no_delay(true), ignored);
  }
}

/// Sends and reads to the end. True when the connection was closed before any answer; then the
/// record is untouched. Closes a connection that can't be used again.
asio::awaitable<bool> HttpClient::exchange(Connection& connection, const Request& request,
                                           RequestRecord& record) {
  beast::error_code error;
  co_await http::async_write(connection.stream, request,
                             asio::redirect_error(asio::use_awaitable, error));
  Parser parser;
  parser.body_limit(boost::none);
  if (!error) {
    co_await http::async_read_header(connection.stream, connection.buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  if (error) {
    connection.stream.close();
    if (error == beast::error::timeout) {
      fail(record, FailureKind::kTimeout, "no answer in time");
    } else if (parser.got_some()) {
      fail(record, FailureKind::kMalformed, error.message());
    } else {
      co_return true;
    }
    co_return false;
  }
  if (parser.get().result() != http::status::ok) {
    co_await read_refusal(connection, parser, record);
  } else {
    co_await read_stream(connection, parser, record);
  }
  co_return false;
}

asio::awaitable<void> HttpClient::read_stream(Connection& connection, Parser& parser,
                                              RequestRecord& record) {
  const std::string content_type(parser.get()[http::field::content_type]);
  StreamReader reader(record, token_chunks_);
  ReadBuffer bytes;
  beast::error_code error;
  while (!parser.is_done() && !error) {
    const std::size_t got = co_await read_some(connection, parser, bytes, error);
    reader.feed({bytes.data(), got}, now_s());
    if (reader.done()) {
      // All is said. A server that doesn't close or end the body now must not cost the timeout.
      connection.stream.expires_after(std::chrono::seconds(2));
    }
  }
  reader.finish({error.failed(), error == beast::error::timeout, error.message()}, now_s());
  if (!error && content_type.rfind("text/event-stream", 0) != 0) {
    fail(record, FailureKind::kMalformed,
         "the answer is '" + content_type + "', not an event stream");
  }
  if (error || !parser.keep_alive()) {
    connection.stream.close();
  }
}

asio::awaitable<void> HttpClient::read_refusal(Connection& connection, Parser& parser,
                                               RequestRecord& record) {
  constexpr std::size_t kMaxBodyBytes = 64 << 10;
  std::string body;
  ReadBuffer bytes;
  beast::error_code error;
  while (!parser.is_done() && !error && body.size() < kMaxBodyBytes) {
    const std::size_t got = co_await read_some(connection, parser, bytes, error);
    body.append(bytes.data(), got);
  }
  connection.stream.close();
  record.http_status = static_cast<int>(parser.get().result_int());
  fail(record, FailureKind::kHttpStatus, error_message(body));
}

/// Waits for the next bytes of a body. Not async_read, which would wait until `bytes` is full.
asio::awaitable<std::size_t> HttpClient::read_some(Connection& connection, Parser& parser,
                                                   ReadBuffer& bytes, beast::error_code& error) {
  parser.get().body().data = bytes.data();
  parser.get().body().size = bytes.size();
  co_await http::async_read_some(connection.stream, connection.buffer, parser,
                                 asio::redirect_error(asio::use_awaitable, error));
  if (error == http::error::need_buffer) {
    error = {};
  }
  co_return bytes.size() - parser.get().body().size;
}

asio::awaitable<void> HttpClient::get(std::string path, WholeReply& reply) {
  Connection connection(io_);
  connection.stream.expires_after(target_.timeout);
  beast::error_code error;
  co_await connect(connection, error);
  http::request<http::empty_body> request{http::verb::get, target_.url.prefix + path, 11};
  set_common_fields(request);
  request.set(http::field::connection, "close");
  if (!error) {
    co_await http::async_write(connection.stream, request,
                               asio::redirect_error(asio::use_awaitable, error));
  }
  http::response<http::string_body> response;
  if (!error) {
    co_await http::async_read(connection.stream, connection.buffer, response,
                              asio::redirect_error(asio::use_awaitable, error));
  }
  if (error) {
    reply.error = error.message();
    co_return;
  }
  reply.connected = true;
  reply.status = static_cast<int>(response.result_int());
  reply.body = std::move(response.body());
}

std::unique_ptr<HttpClient::Connection> HttpClient::take_idle() {
  if (idle_.empty()) {
    return nullptr;
  }
  std::unique_ptr<Connection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

void HttpClient::fail(RequestRecord& record, FailureKind kind, std::string detail) const {
  record.failure = kind;
  record.failure_detail = std::move(detail);
  record.end_s = now_s();
}

}  // namespace fastfd::bench
