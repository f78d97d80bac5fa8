#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace fastfd::bench {

/// One HTTP connection of the test server.
class TestConnection {
 public:
  explicit TestConnection(int fd) : fd_(fd) {}

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void send_json(int status, const std::string& body) const {
    send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void begin_stream() const {
    send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  void chunk(const std::string& bytes) const {
    constexpr const char* kHex = "0123456789abcdef";
    std::string size;
    for (std::size_t rest = bytes.size(); rest > 0; rest /= 16) {
      size.insert(size.begin(), kHex[rest % 16]);
    }
    send(size + "\r\n" + bytes + "\r\n");
  }
  void event(const std::string& data) const { chunk("data: " + data + "\n\n"); }
  void end_stream() const { send("0\r\n\r\n"); }
  /// Blocks until the client has closed its end.
  void await_close() const {
    char byte = 0;
    while (::recv(fd_, &byte, 1, 0) > 0) {
    }
  }

 private:
  int fd_;
};

struct TestRequest {
  std::string path;
  std::string body;
};

/// HTTP/1.1 on a free port of 127.0.0.1, a thread for each connection. The handler answers one
/// request; false closes the connection.
class TestServer {
 public:
  using Handler = std::function<bool(const TestRequest&, const TestConnection&)>;

  explicit TestServer(Handler handler)
      : handler_(std::move(handler)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 512);
    socklen_t address_bytes = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &address_bytes);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : connections_) {
      thread.join();
    }
    ::close(listener_);
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int num_connections() const { return num_connections_.load(); }

 private:
  void accept_all() {
    while (true) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) {
        return;
      }
      ++num_connections_;
      connections_.emplace_back([this, fd] {
        serve(fd);
        ::close(fd);
      });
    }
  }

  void serve(int fd) const {
    std::string input;
    while (true) {
      TestRequest request;
      if (!read_request(fd, input, request) || !handler_(request, TestConnection(fd))) {
        return;
      }
    }
  }

  static bool read_request(int fd, std::string& input, TestRequest& request) {
    std::size_t head_end = 0;
    while ((head_end = input.find("\r\n\r\n")) == std::string::npos) {
      if (!read_more(fd, input)) {
        return false;
      }
    }
    const std::size_t path_begin = input.find(' ') + 1;
    request.path = input.substr(path_begin, input.find(' ', path_begin) - path_begin);
    std::size_t body_bytes = 0;
    const std::size_t length_at = input.find("Content-Length: ");
    if (length_at != std::string::npos && length_at < head_end) {
      body_bytes = std::stoul(input.substr(length_at + 16));
    }
    while (input.size() < head_end + 4 + body_bytes) {
      if (!read_more(fd, input)) {
        return false;
      }
    }
    request.body = input.substr(head_end + 4, body_bytes);
    input.erase(0, head_end + 4 + body_bytes);
    return true;
  }

  static bool read_more(int fd, std::string& input) {
    char buffer[4096];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) {
      return false;
    }
    input.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  Handler handler_;
  int listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> num_connections_{0};
  std::vector<std::thread> connections_;  // touched by the acceptor, then by the destructor
  std::thread acceptor_;
};

}  // namespace fastfd::bench
