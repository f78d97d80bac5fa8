#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/load_generator.h"
#include "bench/metrics.h"
#include "bench/url.h"

namespace fastfd::bench {

/// Where requests go, and how long each may take.
struct HttpTarget {
  Url url;
  std::string api_key;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  std::chrono::steady_clock::duration timeout{};
};

/// HTTP/1.1 over a pool of kept connections, on the caller's event loop. Not thread-safe.
class HttpClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Times of records count from `begin`.
  HttpClient(boost::asio::io_context& io, const HttpTarget& target) : io_(io), target_(target) {}

  void set_begin(TimePoint begin) { begin_ = begin; }
  double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  /// Chunks with tokens that came in so far, all requests.
  std::uint64_t token_chunks() const { return token_chunks_; }

  /// Sends `body` and reads the event stream to its end. Completes `record`, whatever happens.
  boost::asio::awaitable<void> post_streaming(std::string path, const std::string& body,
                                              RequestRecord& record);

  boost::asio::awaitable<void> get(std::string path, WholeReply& reply);

 private:
  using Parser = boost::beast::http::response_parser<boost::beast::http::buffer_body>;
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  using ReadBuffer = std::array<char, 4096>;

  struct Connection {
    explicit Connection(boost::asio::io_context& io) : stream(io) {}
    boost::beast::tcp_stream stream;
    boost::beast::flat_buffer buffer;  // bytes read beyond what was parsed
  };

  boost::asio::awaitable<void> connect(Connection& connection, boost::beast::error_code& error);
  boost::asio::awaitable<bool> exchange(Connection& connection, const Request& request,
                                        RequestRecord& record);
  boost::asio::awaitable<void> read_stream(Connection& connection, Parser& parser,
                                           RequestRecord& record);
  boost::asio::awaitable<void> read_refusal(Connection& connection, Parser& parser,
                                            RequestRecord& record);
  static boost::asio::awaitable<std::size_t> read_some(Connection& connection, Parser& parser,
                                                       ReadBuffer& bytes,
                                                       boost::beast::error_code& error);
  std::unique_ptr<Connection> take_idle();
  void fail(RequestRecord& record, FailureKind kind, std::string detail) const;
  template <typename AnyRequest>
  void set_common_fields(AnyRequest& request) const;

  boost::asio::io_context& io_;
  const HttpTarget& target_;
  TimePoint begin_;
  std::uint64_t token_chunks_ = 0;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace fastfd::bench
