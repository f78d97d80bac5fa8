#pragma once

/// A second process on the same GPU: this program again, started with `--peer ADDRESS`. It owns a
/// window, hands it over, and runs kernels on it when told to.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/gpu/child_process.h"
#include "tests/gpu/probe.h"
#include "transport/memory.h"

namespace fastfd::testing {

/// What lies where in the peer's window.
struct ProbeWindow {
  static constexpr std::uint32_t kNumWords = 16384;
  std::byte* base;

  std::uint64_t* to_peer() const { return reinterpret_cast<std::uint64_t*>(base); }
  std::uint64_t* from_peer() const { return reinterpret_cast<std::uint64_t*>(base + 128); }
  std::uint64_t* never() const { return reinterpret_cast<std::uint64_t*>(base + 256); }
  std::uint32_t* payload_to_peer() const { return reinterpret_cast<std::uint32_t*>(base + 4096); }
  std::uint32_t* payload_from_peer() const { return payload_to_peer() + kNumWords; }
  ProbeChannel channel_to_peer() const { return {to_peer(), payload_to_peer(), kNumWords}; }
  ProbeChannel channel_from_peer() const { return {from_peer(), payload_from_peer(), kNumWords}; }
  static constexpr std::size_t bytes() { return 4096 + 2 * kNumWords * sizeof(std::uint32_t); }
};

enum class PeerTask : std::uint32_t {
  kReceive,   ///< wait for to_peer, count wrong words of payload_to_peer
  kPost,      ///< write payload_from_peer, raise from_peer
  kPingPong,  ///< serve `num_rounds`; answers before it starts, then with the result
  kSpin,      ///< start a wait that nobody ends; answers once it runs
  kAbort,     ///< raise the abort word of that wait; answers when the GPU is idle
  kExit,      ///< end cleanly; no answer
};

struct PeerCommand {
  PeerTask task;
  std::uint32_t seed;
  std::uint64_t value;
  std::uint32_t num_rounds;
};

struct PeerAnswer {
  std::uint32_t is_ok;
  std::uint32_t num_wrong;
  std::uint64_t elapsed_ns;
  char message[256];
};

class PeerProcess {
 public:
  /// Starts it and takes its window. Throws std::runtime_error if it doesn't come up.
  explicit PeerProcess(const std::string& name);

  int window_fd() const { return window_fd_.get(); }
  void send(const PeerCommand& command);
  PeerAnswer receive(std::chrono::seconds timeout = std::chrono::seconds(20));
  PeerAnswer call(const PeerCommand& command) {
    send(command);
    return receive();
  }
  void kill() { child_.kill(); }
  int wait_for_exit() { return child_.wait_for_exit(); }

 private:
  ChildProcess child_;
  transport::UniqueFd window_fd_;
};

/// `main` calls this first: runs the peer and returns its exit status if the arguments say so.
std::optional<int> run_as_peer(int argc, char** argv);

}  // namespace fastfd::testing
