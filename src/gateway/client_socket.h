#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "fastfd/gateway/gateway_server.h"

namespace fastfd::gateway {

/// The socket of a client that is written to at any time, outside of the coroutine that reads: a
/// write is one system call as long as the client keeps up. What it does not take waits, within
/// bounds of size and time. Gateway thread only.
class ClientSocket : public std::enable_shared_from_this<ClientSocket> {
 public:
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;
  virtual ~ClientSocket() = default;

 protected:
  using Socket = boost::asio::ip::tcp::socket;
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;

  static constexpr std::size_t kReadBytes = 4096;
  static constexpr std::chrono::milliseconds kFillerInterval{5000};
  static constexpr auto kNever = std::chrono::steady_clock::time_point::max();

  /// `options` must outlive the socket.
  ClientSocket(const GatewayOptions& options, Socket socket);

  /// The client is gone, or hopelessly slow; the socket is about to be closed.
  virtual void on_lost() = 0;
  /// Whether the client's going away still matters to anybody.
  virtual bool watches() const = 0;
  /// Bytes that may be sent now and that a client skips; empty: there are none.
  virtual std::string_view filler() const = 0;

  /// Writes what the socket takes now and keeps the rest. With `bounded`, a client that lets too
  /// much pile up is given up.
  void send(std::string_view head, std::string_view body, std::string_view tail, bool bounded);

  /// From now on, and as long as watches(), notices when the client goes away, and keeps in
  /// buffer() what it sends ahead. A client that closes its sending half may go on reading, and
  /// nothing tells the two apart but what comes back when it is sent something: a reset, or
  /// nothing. So it is sent filler() at once and then every kFillerInterval; where there is none it
  /// counts as gone.
  void watch_client();

  void lost();
  void close();

  /// Until `condition` holds; whoever may make it true calls wake().
  template <typename Condition>
  Awaitable<> wait_until(Condition condition) {
    while (!condition()) {
      boost::system::error_code cancelled;
      co_await wake_timer_.async_wait(
          boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
    }
  }
  void wake() { wake_timer_.cancel(); }

  Socket& socket() { return socket_; }
  boost::beast::flat_buffer& buffer() { return buffer_; }  ///< received, not yet parsed
  bool gone() const { return gone_; }                      ///< nothing more can be sent
  bool all_sent() const { return unsent_.empty(); }
  /// When the owner, or this class for unsent bytes, has waited long enough.
  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  void set_deadline(std::chrono::steady_clock::time_point deadline) { deadline_ = deadline; }

 private:
  void wait_writable();
  void send_unsent();
  void read_ahead();
  void on_half_close();
  void send_filler();

  const GatewayOptions& options_;
  Socket socket_;
  boost::beast::flat_buffer buffer_;
  std::chrono::steady_clock::time_point deadline_;
  boost::asio::steady_timer wake_timer_;
  boost::asio::steady_timer filler_timer_;
  std::string unsent_;
  bool waiting_writable_ = false;
  bool watching_ = false;
  bool watching_reset_ = false;
  bool gone_ = false;
};

}  // namespace fastfd::gateway
