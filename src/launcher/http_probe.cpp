#include "fastfd/launcher/http_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "launcher/child_process.h"

namespace fastfd::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// A socket with a deadline over all its operations.
class TimedSocket {
 public:
  TimedSocket(UniqueFd fd, Clock::time_point deadline) : fd_(std::move(fd)), deadline_(deadline) {}

  /// False when the deadline came first.
  bool wait(short events) const {
    pollfd waiting{fd_.get(), events, 0};
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
      const int ready =
          ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
      if (ready >= 0 || errno != EINTR) {
        return ready > 0;
      }
    }
  }
  int get() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  Clock::time_point deadline_;
};

Status timeout_status(const std::string& url) {
  return {StatusCode::kDeadlineExceeded, url + ": no answer in time"};
}

Status connect_to(const TimedSocket& socket, const addrinfo& address, const std::string& url) {
  int error = 0;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno == EINPROGRESS) {
      if (!socket.wait(POLLOUT)) {
        return timeout_status(url);
      }
      socklen_t error_bytes = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    } else {
      error = errno;
    }
  }
  if (error != 0) {
    return {StatusCode::kUnavailable, url + ": " + std::generic_category().message(error)};
  }
  return Status::ok();
}

Status exchange(const TimedSocket& socket, std::string_view request, const std::string& url,
                std::string& reply) {
  constexpr std::size_t kMaxReplyBytes = 1 << 20;
  while (!request.empty()) {
    const ssize_t sent = ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      request.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!socket.wait(POLLOUT)) {
        return timeout_status(url);
      }
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, url + ": " + std::generic_category().message(errno)};
    }
  }
  std::array<char, 4096> buffer;
  while (reply.size() < kMaxReplyBytes) {
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) {
      break;
    }
    if (got > 0) {
      reply.append(buffer.data(), static_cast<std::size_t>(got));
    } else if (errno == EAGAIN) {
      if (!socket.wait(POLLIN)) {
        return timeout_status(url);
      }
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, url + ": " + std::generic_category().message(errno)};
    }
  }
  return Status::ok();
}

/// "HTTP/1.x NNN reason\r\n headers \r\n\r\n body"
Result<HttpReply> parse_reply(const std::string& raw, const std::string& url) {
  HttpReply reply;
  const std::size_t header_end = raw.find("\r\n\r\n");
  constexpr std::size_t kStatusAt = 9;
  if (raw.rfind("HTTP/1.", 0) != 0 || header_end == std::string::npos ||
      std::from_chars(raw.data() + kStatusAt, raw.data() + header_end, reply.status).ec !=
          std::errc()) {
    return Status(StatusCode::kInternal, url + ": what answers is no HTTP server");
  }
  reply.body = raw.substr(header_end + 4);
  return reply;
}

}  // namespace

std::string reachable_host(const std::string& listen_host) {
  if (listen_host.empty() || listen_host == "0.0.0.0") {
    return "127.0.0.1";
  }
  return listen_host == "::" ? "::1" : listen_host;
}

Result<HttpReply> http_get(const std::string& host, std::uint16_t port, const std::string& path,
                           std::chrono::milliseconds timeout) {
  const std::string authority =
      (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" + std::to_string(port);
  const std::string url = "http://" + authority + path;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw_found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw_found);
  if (error != 0) {
    return Status(StatusCode::kUnavailable, url + ": " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw_found, &::freeaddrinfo);
  const auto deadline = Clock::now() + timeout;
  Status status(StatusCode::kUnavailable, url + ": no address");
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    const TimedSocket socket(
        UniqueFd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        deadline);
    status = connect_to(socket, *address, url);
    if (!status) {
      continue;  // "localhost" may mean ::1 while the server listens on 127.0.0.1
    }
    // HTTP/1.0: the reply is not chunked and ends with the connection.
    std::string raw;
    const std::string request = fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", path, authority);
    status = exchange(socket, request, url, raw);
    return status ? parse_reply(raw, url) : Result<HttpReply>(status);
  }
  return status;
}

}  // namespace fastfd::launcher
