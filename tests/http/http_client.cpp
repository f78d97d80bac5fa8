#include "http/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace fastfd::gateway {
namespace {

constexpr int kPatienceMs = 20'000;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("test client: " + what);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::vector<std::string> ClientResponse::events() const {
  std::vector<std::string> events;
  constexpr std::string_view kData = "data: ";
  std::size_t from = 0;
  for (;;) {
    const std::size_t end = body.find("\n\n", from);
    if (end == std::string::npos) {
      return events;
    }
    const std::string event = body.substr(from, end - from);
    if (event.starts_with(':')) {  // a comment
      from = end + 2;
      continue;
    }
    if (!event.starts_with(kData)) {
      fail("not an event: " + event);
    }
    events.push_back(event.substr(kData.size()));
    from = end + 2;
  }
}

HttpClient::HttpClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  connect_to(port);
}

HttpClient::HttpClient(std::uint16_t port, int receive_buffer_bytes)
    : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  connect_to(port);
}

HttpClient::~HttpClient() { close(); }

void HttpClient::connect_to(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (socket_ < 0 ||
      ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const std::string reason = std::strerror(errno);
    close();
    fail("connect: " + reason);
  }
}

void HttpClient::close() {
  if (socket_ >= 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

void HttpClient::close_sending() { ::shutdown(socket_, SHUT_WR); }

void HttpClient::reset() {
  const linger now{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      fail(std::string("send: ") + std::strerror(errno));
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void HttpClient::send_request(std::string_view method, std::string_view target,
                              std::string_view body, std::string_view extra_headers) {
  std::string request;
  request.append(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: test\r\n");
  request.append(extra_headers);
  if (method == "POST") {
    request +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  request.append("\r\n").append(body);
  send(request);
}

bool HttpClient::fill() {
  pollfd ready{socket_, POLLIN, 0};
  if (::poll(&ready, 1, kPatienceMs) != 1) {
    fail("nothing arrives; so far: " + buffer_);
  }
  std::array<char, 65536> bytes{};
  const ssize_t received = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (received > 0) {
    buffer_.append(bytes.data(), static_cast<std::size_t>(received));
  }
  if (received < 0) {
    fail(std::string("recv: ") + std::strerror(errno));
  }
  return received > 0;
}

std::string HttpClient::take(std::size_t num_bytes) {
  while (buffer_.size() < num_bytes) {
    if (!fill()) {
      fail("closed in the middle of a response");
    }
  }
  std::string bytes = buffer_.substr(0, num_bytes);
  buffer_.erase(0, num_bytes);
  return bytes;
}

std::string HttpClient::read_until(std::string_view mark) {
  std::size_t at = 0;
  while ((at = buffer_.find(mark)) == std::string::npos) {
    if (!fill()) {
      fail("closed before \"" + std::string(mark) + "\"; got: " + buffer_);
    }
  }
  return take(at + mark.size());
}

ClientResponse HttpClient::read_head() {
  ClientResponse response;
  response.head = read_until("\r\n\r\n");
  if (!response.head.starts_with("HTTP/1.1 ")) {
    fail("not a response: " + response.head);
  }
  response.status = std::stoi(response.head.substr(9, 3));
  std::size_t from = response.head.find("\r\n") + 2;
  while (from < response.head.size() - 2) {
    const std::size_t end = response.head.find("\r\n", from);
    const std::size_t colon = response.head.find(": ", from);
    response.headers[lower(response.head.substr(from, colon - from))] =
        response.head.substr(colon + 2, end - colon - 2);
    from = end + 2;
  }
  return response;
}

std::string HttpClient::read_chunked() {
  std::string body;
  for (;;) {
    const std::string line = read_until("\r\n");
    const std::size_t num_bytes = std::stoul(line, nullptr, 16);
    body += take(num_bytes);
    if (take(2) != "\r\n") {
      fail("a chunk does not end where it says");
    }
    if (num_bytes == 0) {
      return body;
    }
  }
}

ClientResponse HttpClient::read_response(bool head_only) {
  ClientResponse response = read_head();
  if (head_only || response.status == 204 || response.status < 200) {
    return response;
  }
  if (response.headers.contains("transfer-encoding")) {
    response.body = read_chunked();
  } else if (response.headers.contains("content-length")) {
    response.body = take(std::stoul(response.headers["content-length"]));
  } else {
    read_to_end(response.body);
  }
  return response;
}

ClientResponse HttpClient::read_final_response() {
  ClientResponse response = read_response();
  while (response.status < 200) {
    response = read_response();
  }
  return response;
}

ClientResponse HttpClient::exchange(std::string_view method, std::string_view target,
                                    std::string_view body) {
  send_request(method, target, body);
  return read_response(method == "HEAD");
}

bool HttpClient::read_to_end(std::string& rest) {
  try {
    while (fill()) {
    }
  } catch (const std::runtime_error& error) {
    if (std::string_view(error.what()).find("recv") == std::string_view::npos) {
      throw;
    }
    rest += std::exchange(buffer_, {});
    return false;
  }
  rest += std::exchange(buffer_, {});
  return true;
}

}  // namespace fastfd::gateway
