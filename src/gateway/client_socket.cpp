#include "gateway/client_socket.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace fastfd::gateway {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::steady_clock;

bool would_block(const error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again;
}

}  // namespace

ClientSocket::ClientSocket(const GatewayOptions& options, Socket socket)
    : options_(options),
      socket_(std::move(socket)),
      // Room for the longest head, or for what a client sends ahead while it waits.
      buffer_(options.max_header_bytes + kReadBytes),
      deadline_(kNever),
      wake_timer_(socket_.get_executor(), kNever),
      filler_timer_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
}

void ClientSocket::close() {
  gone_ = true;
  error_code ignored;
  socket_.close(ignored);
  filler_timer_.cancel();
  wake();
}

void ClientSocket::lost() {
  if (gone_) {
    return;
  }
  unsent_ = {};
  on_lost();
  close();
}

void ClientSocket::send(std::string_view head, std::string_view body, std::string_view tail,
                        bool bounded) {
  if (gone_) {
    return;
  }
  std::size_t sent = 0;
  if (unsent_.empty()) {
    const std::array<asio::const_buffer, 3> buffers = {asio::buffer(head), asio::buffer(body),
                                                       asio::buffer(tail)};
    error_code error;
    sent = socket_.write_some(buffers, error);
    if (error && !would_block(error)) {
      lost();
      return;
    }
  }
  for (const std::string_view part : {head, body, tail}) {
    const std::size_t skip = std::min(sent, part.size());
    sent -= skip;
    unsent_.append(part.substr(skip));
  }
  if (bounded && unsent_.size() > options_.max_unsent_bytes) {
    lost();
    return;
  }
  if (!unsent_.empty()) {
    wait_writable();
  }
}

void ClientSocket::wait_writable() {
  if (waiting_writable_) {
    return;
  }
  waiting_writable_ = true;
  deadline_ = steady_clock::now() + options_.write_timeout;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
    self->waiting_writable_ = false;
    if (!error && !self->gone_) {
      self->send_unsent();
    }
  });
}

void ClientSocket::send_unsent() {
  error_code error;
  const std::size_t sent = socket_.write_some(asio::buffer(unsent_), error);
  if (error && !would_block(error)) {
    lost();
    return;
  }
  unsent_.erase(0, sent);
  if (unsent_.empty()) {
    unsent_ = {};  // a stream that was slow once should not keep its megabyte
    deadline_ = kNever;
    wake();
  } else {
    wait_writable();
  }
}

void ClientSocket::watch_client() {
  if (watching_) {
    return;
  }
  watching_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->watching_ = false;
    if (!error && !self->gone_ && self->watches()) {
      self->read_ahead();
    }
  });
}

void ClientSocket::read_ahead() {
  const std::size_t room = buffer_.max_size() - buffer_.size();
  if (room == 0) {
    return;  // so much was sent ahead that only a failing write will tell that the client is gone
  }
  error_code error;
  const std::size_t num_bytes =
      socket_.read_some(buffer_.prepare(std::min(room, kReadBytes)), error);
  if (error == asio::error::eof) {
    on_half_close();
    return;
  }
  if (error && !would_block(error)) {
    lost();
    return;
  }
  buffer_.commit(num_bytes);
  watch_client();
}

void ClientSocket::on_half_close() {
  if (!watching_reset_) {
    watching_reset_ = true;
    // Not wait_read: after the end of the client's data the socket is always readable.
    socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const error_code& error) {
      self->watching_reset_ = false;
      if (!error) {
        self->lost();
      }
    });
  }
  send_filler();
}

void ClientSocket::send_filler() {
  const std::string_view bytes = filler();
  if (bytes.empty()) {
    lost();
    return;
  }
  if (unsent_.empty()) {  // what waits to be sent serves as well
    send(bytes, {}, {}, /*bounded=*/false);
  }
  if (gone_) {
    return;
  }
  filler_timer_.expires_after(kFillerInterval);
  filler_timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->gone_ && self->watches()) {
      self->send_filler();
    }
  });
}

}  // namespace fastfd::gateway
