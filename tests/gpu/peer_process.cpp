#include "tests/gpu/peer_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "tests/gpu/probe_kernels.h"
#include "transport/unix_socket.h"

extern char** environ;  // NOLINT

namespace fastfd::testing {
namespace {

using device::CudaDevice;
using device::DeviceStream;
using device::DeviceWindow;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr std::chrono::seconds kStartTimeout{60};
constexpr std::uint64_t kWaitNs = 15'000'000'000;

void require(const Status& status) {
  if (!status) {
    throw std::runtime_error(status.to_string());
  }
}

template <typename T>
void send_value(const UniqueFd& socket, const T& value, std::span<const int> fds = {}) {
  require(transport::send_packet(socket, std::as_bytes(std::span(&value, 1)), fds));
}

/// False if the other end has closed or the time is over.
template <typename T>
bool receive_value(const UniqueFd& socket, T& value, std::chrono::seconds timeout,
                   UniqueFd* fd = nullptr) {
  const auto end = steady_clock::now() + timeout;
  while (steady_clock::now() < end) {
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

/// What the peer holds on its side.
class Peer {
 public:
  explicit Peer(UniqueFd socket)
      : socket_(std::move(socket)),
        gpu_(CudaDevice::open(0)),
        stream_(gpu_),
        state_(gpu_, sizeof(layout::AbortState)),
        words_(gpu_, 4096) {
    require(device::fill_async(state_.data(), 0, state_.num_bytes(), stream_.handle()));
    require(stream_.synchronize());
    auto window = DeviceWindow::create(gpu_, ProbeWindow::bytes());
    require(window.status());
    window_.emplace(std::move(*window));
    const auto fd = window_->export_fd();
    require(fd.status());
    const UniqueFd owned(*fd);
    const int fds[] = {owned.get()};
    PeerAnswer hello{};
    hello.is_ok = 1;
    send_value(socket_, hello, fds);
  }

  void serve() {
    PeerCommand command{};
    while (receive_value(socket_, command, std::chrono::seconds(120)) &&
           command.task != PeerTask::kExit) {
      PeerAnswer answer{};
      const Status status = run(command, answer);
      answer.is_ok = status ? 1 : 0;
      std::snprintf(answer.message, sizeof(answer.message), "%s", status.message().c_str());
      send_value(socket_, answer);
    }
  }

 private:
  std::uint32_t* started() const { return words_.as<std::uint32_t>(); }
  std::uint32_t* abort_word() const { return words_.as<std::uint32_t>() + 32; }
  std::uint32_t* num_wrong() const { return words_.as<std::uint32_t>() + 64; }
  std::uint64_t* elapsed_ns() const { return words_.as<std::uint64_t>() + 64; }
  WaitLimits limits() const { return {abort_word(), state_.as<layout::AbortState>(), kWaitNs}; }

  Status run(const PeerCommand& command, PeerAnswer& answer) {
    const ProbeWindow window{window_->data()};
    const auto stream = stream_.handle();
    Status status;
    switch (command.task) {
      case PeerTask::kReceive:
        status = launch_receive({window.payload_to_peer(), ProbeWindow::kNumWords, command.seed,
                                 window.to_peer(), command.value, limits(), num_wrong()},
                                stream);
        break;
      case PeerTask::kPost:
        status = launch_post({window.payload_from_peer(), ProbeWindow::kNumWords, command.seed,
                              window.from_peer(), command.value},
                             stream);
        break;
      case PeerTask::kPingPong:
        status = launch_ping_pong({window.from_peer(), window.to_peer(), command.value,
                                   command.num_rounds, true, limits(), elapsed_ns()},
                                  stream);
        break;
      case PeerTask::kSpin:
        return spin(window);
      case PeerTask::kAbort:
        std::atomic_ref<std::uint32_t>(*abort_word()).store(1);
        break;
      case PeerTask::kExit:
        break;
    }
    if (status) {
      status = stream_.synchronize();
    }
    answer.num_wrong = *num_wrong();
    answer.elapsed_ns = *elapsed_ns();
    return status;
  }

  Status spin(const ProbeWindow& window) {
    if (Status status = launch_wait({started(), window.never(), 1, limits()}, stream_.handle());
        !status) {
      return status;
    }
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    while (std::atomic_ref<std::uint32_t>(*started()).load() == 0) {
      if (steady_clock::now() > end) {
        return {StatusCode::kDeadlineExceeded, "the spinning kernel does not start"};
      }
    }
    return Status::ok();
  }

  UniqueFd socket_;
  CudaDevice gpu_;
  DeviceStream stream_;
  device::DeviceBuffer state_;
  device::PinnedBuffer words_;
  std::optional<DeviceWindow> window_;
};

}  // namespace

PeerProcess::PeerProcess(const std::string& name) {
  const std::string address = "unix:@fastfd-probe-" + name + "-" + std::to_string(getpid());
  auto listener = transport::listen_unix(address);
  require(listener.status());
  std::string program = "/proc/self/exe";
  std::string flag = "--peer";
  std::string argument = address;
  char* arguments[] = {program.data(), flag.data(), argument.data(), nullptr};
  if (posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
    throw std::runtime_error("the peer process can't be started");
  }
  const auto end = steady_clock::now() + kStartTimeout;
  while (!socket_.is_open() && steady_clock::now() < end) {
    socket_ = transport::accept_unix(*listener);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  PeerAnswer hello{};
  if (!socket_.is_open() || !receive_value(socket_, hello, kStartTimeout, &window_fd_) ||
      !window_fd_.is_open()) {
    kill();
    throw std::runtime_error("the peer process does not come up; its error is above");
  }
}

PeerProcess::~PeerProcess() { kill(); }

void PeerProcess::send(const PeerCommand& command) { send_value(socket_, command); }

PeerAnswer PeerProcess::receive(std::chrono::seconds timeout) {
  PeerAnswer answer{};
  if (!receive_value(socket_, answer, timeout)) {
    throw std::runtime_error("the peer process does not answer");
  }
  return answer;
}

void PeerProcess::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

int PeerProcess::wait_for_exit() {
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (pid_ > 0 && steady_clock::now() < end) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return -1;
}

std::optional<int> run_as_peer(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--peer") != 0) {
    return std::nullopt;
  }
  try {
    auto socket = transport::connect_unix(argv[2]);
    require(socket.status());
    Peer(std::move(*socket)).serve();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer: %s\n", error.what());
    return 1;
  }
}

}  // namespace fastfd::testing
