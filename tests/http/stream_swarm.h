#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastfd::gateway {

/// Many streaming clients on one thread (epoll), each with one request on a connection of its own.
class StreamSwarm {
 public:
  /// Connects `num_streams` clients. Throws std::runtime_error.
  StreamSwarm(std::uint16_t port, std::size_t num_streams);
  ~StreamSwarm();
  StreamSwarm(const StreamSwarm&) = delete;
  StreamSwarm& operator=(const StreamSwarm&) = delete;

  /// Client i POSTs body_of(i) to `target`.
  void send(const std::string& target, const std::function<std::string(std::size_t)>& body_of);

  /// Reads until every stream has ended with its last chunk. `keep` stores what arrived. Throws
  /// std::runtime_error if one closes early or nothing arrives for 60 s.
  void read_all(bool keep);

  /// As received, with chunk framing; empty unless kept.
  const std::string& received(std::size_t i) const { return clients_[i].received; }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  struct Client {
    int socket = -1;
    bool done = false;
    std::string received;  // all of it, or the last bytes
  };

  void read_client(Client& client, bool keep);

  int epoll_ = -1;
  std::vector<Client> clients_;
  std::size_t num_done_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace fastfd::gateway
