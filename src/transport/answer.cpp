#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "fastfd/core/logging.h"
#include "transport/rendezvous.h"

namespace fastfd::transport {
namespace {

/// FFN server's side of one epoch: answers whoever dials, in any order. A dialler that is slow,
/// silent or wrong costs the others nothing.
class Answerer {
 public:
  Answerer(const LocalServer& self, const std::string& address, const UniqueFd& listener,
           Epoch epoch, std::span<const PeerAddress> peers, const Deadline& deadline,
           std::vector<ParkedDialler>& parked, EpochMemory memory)
      : self_(self),
        address_(address),
        listener_(listener),
        epoch_(epoch),
        peers_(peers),
        deadline_(deadline),
        parked_(parked),
        memory_(std::move(memory)) {}

  Result<EpochMemory> run() {
    for (ParkedDialler& dialler : std::exchange(parked_, {})) {
      Line line{std::move(dialler.socket), nullptr};
      if (const Status status = take_hello(line, std::move(dialler.hello)); !status) {
        return status;
      }
    }
    while (num_connected_ < peers_.size()) {
      if (deadline_.is_cancelled()) {
        return Status(StatusCode::kAborted, "waiting for attention servers was cancelled");
      }
      if (deadline_.is_over()) {
        return describe_timeout();
      }
      wait_for_events();
      take_new_lines();
      if (const Status status = read_lines(); !status) {
        return status;
      }
    }
    return std::move(memory_);
  }

 private:
  /// A connection. It waits for a hello, then, once answered, for the accept.
  struct Line {
    UniqueFd socket;
    const PeerAddress* answered = nullptr;
  };

  /// Diallers of later epochs to keep: more than one a server means that old ones have given up.
  static constexpr std::size_t kMaxParked = 2 * kMaxServers;

  void wait_for_events() {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    for (const Line& line : lines_) {
      waiting.push_back({line.socket.get(), POLLIN, 0});
    }
    ::poll(waiting.data(), waiting.size(), deadline_.slice_ms());
  }

  void take_new_lines() {
    for (UniqueFd socket = accept_unix(listener_); socket.is_open();
         socket = accept_unix(listener_)) {
      if (const Status status = check_same_user(socket); !status) {
        refuse(socket, status);
        continue;
      }
      lines_.push_back({std::move(socket), nullptr});
    }
  }

  /// Reads each line once; an error ends the whole attempt.
  Status read_lines() {
    std::vector<Line> lines = std::exchange(lines_, {});
    for (Line& line : lines) {
      Result<std::optional<ReceivedMessage>> received = receive_message(line.socket);
      if (!received) {
        // A dialler that closed has given up or will dial again: nothing to refuse.
        if (received.status().code() != StatusCode::kUnavailable) {
          refuse(line.socket, received.status());
        }
        continue;
      }
      if (!received->has_value()) {
        lines_.push_back(std::move(line));
        continue;
      }
      Status status = line.answered == nullptr ? take_hello(line, std::move(**received))
                                               : take_accept(line, (*received)->message);
      if (!status) {
        return status;
      }
    }
    return Status::ok();
  }

  /// Answers, parks or refuses. Only a peer that belongs to this epoch and has other windows, or
  /// such as can't be reached, is an error of the whole attempt: it would not get better by
  /// waiting.
  Status take_hello(Line& line, ReceivedMessage hello) {
    const HandshakeMessage& message = hello.message;
    if (message.kind == MessageKind::kHello && message.epoch > epoch_) {
      if (parked_.size() == kMaxParked) {
        parked_.erase(parked_.begin());
      }
      parked_.push_back({std::move(line.socket), std::move(hello)});
      return Status::ok();
    }
    const PeerAddress* peer = find_peer(message);
    if (peer == nullptr || message.kind != MessageKind::kHello) {
      refuse(line.socket, Status(StatusCode::kInvalidArgument,
                                 fmt::format("{} is not in epoch {} of {}",
                                             server_name(message.role, message.rank), epoch_,
                                             server_name(self_.role, self_.rank))));
      return Status::ok();
    }
    Status status = check_epoch(message, epoch_);
    if (status) {
      status = check_incarnation(message, peer->incarnation);
    }
    if (!status) {
      refuse(line.socket, status);
      return Status::ok();
    }
    if (status = check_windows(message, self_.windows, self_.shape); !status) {
      refuse(line.socket, mirrored(message));
      return status;
    }
    if (status = memory_.map_peer(self_, hello); !status) {
      refuse(line.socket, status);
      return status.code() == StatusCode::kUnavailable ? status : Status::ok();
    }
    if (send_message(line.socket, make_hello(self_, epoch_), memory_.descriptors_for(peer->rank))) {
      lines_.push_back({std::move(line.socket), peer});
    }
    return Status::ok();
  }

  Status take_accept(const Line& line, const HandshakeMessage& message) {
    const PeerAddress& peer = *line.answered;
    if (message.kind == MessageKind::kRefusal) {
      const Status reason = refusal_reason(message);
      return Status(reason.code(), fmt::format("{}: {}", server_name(Role::kAttention, peer.rank),
                                               reason.message()));
    }
    if (!std::exchange(is_connected_[peer.rank], true)) {
      ++num_connected_;
    }
    return Status::ok();
  }

  /// The windows' difference as the dialler sees it.
  Status mirrored(const HandshakeMessage& theirs) const {
    return check_windows(make_hello(self_, epoch_), theirs.windows, theirs.shape);
  }

  const PeerAddress* find_peer(const HandshakeMessage& message) const {
    const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const PeerAddress& peer) {
      return peer.rank == message.rank;
    });
    return message.role == Role::kAttention && found != peers_.end() ? &*found : nullptr;
  }

  void refuse(const UniqueFd& socket, const Status& reason) {
    spdlog::warn("refused a connection at {}: {}", address_, reason.message());
    last_refusal_ = reason.message();
    // The dialler may be gone already: then there is nobody to tell.
    static_cast<void>(send_message(socket, make_refusal(reason)));
  }

  Status describe_timeout() const {
    std::vector<std::string> missing;
    for (const PeerAddress& peer : peers_) {
      if (!is_connected_[peer.rank]) {
        missing.push_back(server_name(Role::kAttention, peer.rank));
      }
    }
    return Status(
        StatusCode::kDeadlineExceeded,
        fmt::format("{} did not connect to {} at {} within {} ms{}; check that it runs on this "
                    "host (transport kind {}) and in epoch {}",
                    fmt::join(missing, ", "), server_name(self_.role, self_.rank), address_,
                    deadline_.timeout().count(),
                    last_refusal_.empty() ? "" : " (last refusal: " + last_refusal_ + ")",
                    transport_name(self_.windows), epoch_));
  }

  const LocalServer& self_;
  const std::string& address_;
  const UniqueFd& listener_;
  Epoch epoch_;
  std::span<const PeerAddress> peers_;
  const Deadline& deadline_;
  std::vector<ParkedDialler>& parked_;
  EpochMemory memory_;
  std::vector<Line> lines_;
  std::array<bool, kMaxServers> is_connected_{};
  std::size_t num_connected_ = 0;
  std::string last_refusal_;
};

}  // namespace

Result<EpochMemory> await_attention_servers(const LocalServer& self, const std::string& address,
                                            const UniqueFd& listener, Epoch epoch,
                                            std::span<const PeerAddress> attention_servers,
                                            const Deadline& deadline,
                                            std::vector<ParkedDialler>& parked,
                                            EpochMemory memory) {
  return Answerer(self, address, listener, epoch, attention_servers, deadline, parked,
                  std::move(memory))
      .run();
}

}  // namespace fastfd::transport
