#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fastfd/core/logging.h"
#include "transport/rendezvous.h"

namespace fastfd::transport {
namespace {

/// Attention server's side of one epoch: all calls are open at once, so no FFN server waits for
/// another one's slowness, and a missing one is blamed alone.
class Dialler {
 public:
  Dialler(const LocalServer& self, Epoch epoch, std::span<const PeerAddress> peers,
          const Deadline& deadline, EpochMemory memory)
      : self_(self), epoch_(epoch), deadline_(deadline), memory_(std::move(memory)) {
    for (const PeerAddress& peer : peers) {
      calls_.push_back({&peer, UniqueFd(), false, "not tried yet"});
    }
  }

  Result<EpochMemory> run() {
    const auto start = std::chrono::steady_clock::now();
    bool has_told = false;
    for (;;) {
      for (Call& call : calls_) {
        if (const Status status = advance(call); !status) {
          return status;
        }
      }
      if (std::all_of(calls_.begin(), calls_.end(),
                      [](const Call& call) { return call.is_connected; })) {
        return std::move(memory_);
      }
      if (deadline_.is_cancelled()) {
        return Status(StatusCode::kAborted, "connecting to FFN servers was cancelled");
      }
      if (deadline_.is_over()) {
        return Status(StatusCode::kDeadlineExceeded, describe_missing());
      }
      if (!has_told && std::chrono::steady_clock::now() - start > kSilence) {
        has_told = true;
        spdlog::info("still waiting: {}", describe_missing());
      }
      wait_for_events();
    }
  }

 private:
  static constexpr std::chrono::seconds kSilence{1};

  struct Call {
    const PeerAddress* peer;
    UniqueFd socket;  ///< open: the hello is sent
    bool is_connected;
    std::string state;  ///< for people, while it is not connected
  };

  static std::string name(const Call& call) { return server_name(Role::kFfn, call.peer->rank); }

  void wait_for_events() {
    std::vector<pollfd> waiting;
    for (const Call& call : calls_) {
      if (call.socket.is_open()) {
        waiting.push_back({call.socket.get(), POLLIN, 0});
      }
    }
    ::poll(waiting.data(), waiting.size(), deadline_.slice_ms());
  }

  void try_to_open(Call& call) {
    Result<UniqueFd> socket = connect_unix(call.peer->address);
    Status status = socket.status();
    if (status) {
      status = check_same_user(*socket);
    }
    if (status) {
      status = send_message(*socket, make_hello(self_, epoch_),
                            memory_.descriptors_for(call.peer->rank));
    }
    if (!status) {
      call.state = status.message();
      return;
    }
    call.state = "it listens but has not answered";
    call.socket = std::move(*socket);
  }

  /// One look at a call. Never blocks; an error ends the whole attempt.
  Status advance(Call& call) {
    if (call.is_connected) {
      return Status::ok();
    }
    if (!call.socket.is_open()) {
      try_to_open(call);
      return Status::ok();
    }
    Result<std::optional<ReceivedMessage>> received = receive_message(call.socket);
    Status status = received.status();
    if (status && !received->has_value()) {
      return Status::ok();
    }
    if (status) {
      status = take_answer(call, **received);
      if (!status) {
        return Status(status.code(), fmt::format("{} at {}: {}", name(call), call.peer->address,
                                                 status.message()));
      }
      return status;
    }
    if (status.code() != StatusCode::kUnavailable) {
      return status;
    }
    // It gave up its own attempt at this epoch, or died; whichever, it may come back.
    call.socket.reset();
    call.state = status.message();
    return Status::ok();
  }

  Status take_answer(Call& call, const ReceivedMessage& answer) {
    if (answer.message.kind == MessageKind::kRefusal) {
      return refusal_reason(answer.message);
    }
    Status status = check_identity(answer.message, Role::kFfn, call.peer->rank);
    if (status) {
      status = check_incarnation(answer.message, call.peer->incarnation);
    }
    if (status) {
      status = check_epoch(answer.message, epoch_);
    }
    if (status) {
      status = check_windows(answer.message, self_.windows, self_.shape);
    }
    if (status) {
      status = memory_.map_peer(self_, answer);
    }
    if (!status) {
      static_cast<void>(send_message(call.socket, make_refusal(status)));
      return status;
    }
    HandshakeMessage accept = make_hello(self_, epoch_);
    accept.kind = MessageKind::kAccept;
    call.is_connected = static_cast<bool>(send_message(call.socket, accept));
    call.state = "it closed the connection before it was accepted";
    call.socket.reset();
    return Status::ok();
  }

  std::string describe_missing() const {
    std::vector<std::string> missing;
    for (const Call& call : calls_) {
      if (!call.is_connected) {
        missing.push_back(fmt::format("{} at {} ({})", name(call), call.peer->address, call.state));
      }
    }
    return fmt::format(
        "{} has no connection in epoch {} to {} (timeout {} ms); check that it runs on this host "
        "(transport kind {}) and that its data-plane address is right",
        server_name(self_.role, self_.rank), epoch_, fmt::join(missing, ", "),
        deadline_.timeout().count(), transport_name(self_.windows));
  }

  const LocalServer& self_;
  Epoch epoch_;
  const Deadline& deadline_;
  EpochMemory memory_;
  std::vector<Call> calls_;
};

}  // namespace

Result<EpochMemory> dial_ffn_servers(const LocalServer& self, Epoch epoch,
                                     std::span<const PeerAddress> ffn_servers,
                                     const Deadline& deadline, EpochMemory memory) {
  return Dialler(self, epoch, ffn_servers, deadline, std::move(memory)).run();
}

}  // namespace fastfd::transport
