#include "http/stream_swarm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace fastfd::gateway {
namespace {

constexpr int kPatienceMs = 60'000;
constexpr std::string_view kLastChunk = "\r\n0\r\n\r\n";

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("stream swarm: " + what + ": " + std::strerror(errno));
}

}  // namespace

StreamSwarm::StreamSwarm(std::uint16_t port, std::size_t num_streams)
    : epoll_(::epoll_create1(0)), clients_(num_streams) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    Client& client = clients_[i];
    client.socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (client.socket < 0 || ::connect(client.socket, reinterpret_cast<const sockaddr*>(&address),
                                       sizeof address) != 0) {
      fail("connect");
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, client.socket, &event) != 0) {
      fail("epoll_ctl");
    }
  }
}

StreamSwarm::~StreamSwarm() {
  for (const Client& client : clients_) {
    if (client.socket >= 0) {
      ::close(client.socket);
    }
  }
  ::close(epoll_);
}

void StreamSwarm::send(const std::string& target,
                       const std::function<std::string(std::size_t)>& body_of) {
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    const std::string body = body_of(i);
    const std::string request = "POST " + target + " HTTP/1.1\r\nHost: swarm\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
    if (::send(clients_[i].socket, request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
      fail("send");
    }
  }
}

void StreamSwarm::read_client(Client& client, bool keep) {
  std::array<char, 16384> bytes{};
  const ssize_t received = ::recv(client.socket, bytes.data(), bytes.size(), 0);
  if (received <= 0) {
    fail("closed before the end");
  }
  num_bytes_ += static_cast<std::size_t>(received);
  client.received.append(bytes.data(), static_cast<std::size_t>(received));
  if (client.received.ends_with(kLastChunk)) {
    client.done = true;
    ++num_done_;
  }
  if (!keep && client.received.size() > kLastChunk.size()) {
    client.received.erase(0, client.received.size() - kLastChunk.size());
  }
}

void StreamSwarm::read_all(bool keep) {
  std::array<epoll_event, 256> events{};
  while (num_done_ < clients_.size()) {
    const int count = ::epoll_wait(epoll_, events.data(), events.size(), kPatienceMs);
    if (count <= 0) {
      fail("nothing arrives");
    }
    for (int i = 0; i < count; ++i) {
      Client& client = clients_[events[static_cast<std::size_t>(i)].data.u64];
      if (!client.done) {
        read_client(client, keep);
      }
    }
  }
}

}  // namespace fastfd::gateway
