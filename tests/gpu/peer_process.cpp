#include "tests/gpu/peer_process.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "tests/gpu/probe.h"

namespace fastfd::testing {
namespace {

using device::DeviceWindow;
using transport::UniqueFd;

/// What the peer holds on its side.
class Peer {
 public:
  explicit Peer(UniqueFd socket) : socket_(std::move(socket)) {
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
  Status run(const PeerCommand& command, PeerAnswer& answer) {
    const ProbeWindow window{window_->data()};
    switch (command.task) {
      case PeerTask::kReceive: {
        const auto num_wrong =
            probe_.receive(window.channel_to_peer(), command.seed, command.value);
        answer.num_wrong = num_wrong ? *num_wrong : 0;
        return num_wrong.status();
      }
      case PeerTask::kPost:
        return probe_.post(window.channel_from_peer(), command.seed, command.value);
      case PeerTask::kPingPong: {
        Status status =
            launch_ping_pong({window.from_peer(), window.to_peer(), command.value,
                              command.num_rounds, true, probe_.limits(), probe_.elapsed_ns()},
                             probe_.stream().handle());
        if (status) {
          status = probe_.stream().synchronize();
        }
        answer.elapsed_ns = *probe_.elapsed_ns();
        return status;
      }
      case PeerTask::kSpin:
        return probe_.spin(window.never());
      case PeerTask::kAbort:
        return probe_.end_spin();
      case PeerTask::kExit:
        break;
    }
    return Status::ok();
  }

  UniqueFd socket_;
  device::CudaDevice gpu_ = device::CudaDevice::open(0);
  Probe probe_{gpu_};
  std::optional<DeviceWindow> window_;
};

constexpr char kFlag[] = "--peer";

}  // namespace

PeerProcess::PeerProcess(const std::string& name) : child_(name, kFlag) {
  PeerAnswer hello{};
  if (!receive_value(child_.socket(), hello, ChildProcess::kStartTimeout, &window_fd_) ||
      !window_fd_.is_open()) {
    throw std::runtime_error("the peer process does not come up; its error is above");
  }
}

void PeerProcess::send(const PeerCommand& command) { send_value(child_.socket(), command); }

PeerAnswer PeerProcess::receive(std::chrono::seconds timeout) {
  PeerAnswer answer{};
  if (!receive_value(child_.socket(), answer, timeout)) {
    throw std::runtime_error("the peer process does not answer");
  }
  return answer;
}

std::optional<int> run_as_peer(int argc, char** argv) {
  return run_as_child(argc, argv, kFlag, [](UniqueFd socket, std::span<char*> /*arguments*/) {
    Peer(std::move(socket)).serve();
  });
}

}  // namespace fastfd::testing
