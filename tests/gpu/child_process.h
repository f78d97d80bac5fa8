#pragma once

/// This program as a second process: started with `FLAG ADDRESS ...`, told by a socket what to do.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fastfd/core/status.h"
#include "transport/unix_socket.h"

namespace fastfd::testing {

inline void require(const Status& status) {
  if (!status) {
    throw std::runtime_error(status.to_string());
  }
}

/// `value` as it lies in memory. Throws std::runtime_error if the other end has closed.
template <typename T>
void send_value(const transport::UniqueFd& socket, const T& value, std::span<const int> fds = {}) {
  require(transport::send_packet(socket, std::as_bytes(std::span(&value, 1)), fds));
}

/// False if the other end has closed or the time is over.
template <typename T>
bool receive_value(const transport::UniqueFd& socket, T& value, std::chrono::seconds timeout,
                   transport::UniqueFd* fd = nullptr) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < end) {
    auto packet = transport::receive_packet(socket, std::as_writable_bytes(std::span(&value, 1)));
    if (!packet) {
      return false;
    }
    if (packet->has_value()) {
      if (fd != nullptr && !(*packet)->fds.empty()) {
        *fd = std::move((*packet)->fds[0]);
      }
      return (*packet)->num_bytes == sizeof(T);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

class ChildProcess {
 public:
  static constexpr std::chrono::seconds kStartTimeout{60};

  /// `name` is unique among the children of this process. Throws std::runtime_error if the child
  /// does not connect.
  ChildProcess(const std::string& name, std::string flag, std::vector<std::string> arguments = {});
  ~ChildProcess();  ///< kills it if it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const transport::UniqueFd& socket() const { return socket_; }
  /// SIGKILL, and waits until it is gone.
  void kill();
  /// Exit status after a clean end; -1 after a signal or none within 20 s.
  int wait_for_exit();

 private:
  transport::UniqueFd socket_;
  pid_t pid_ = -1;
};

/// For `main`: runs `body` with the socket and the arguments behind the address, and returns the
/// exit status, if the program was started as a child with this flag.
std::optional<int> run_as_child(
    int argc, char** argv, const std::string& flag,
    const std::function<void(transport::UniqueFd socket, std::span<char*> arguments)>& body);

}  // namespace fastfd::testing
