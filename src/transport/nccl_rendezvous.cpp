#include "transport/nccl_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "fastfd/core/logging.h"
#include "fastfd/transport/window_shape.h"

namespace fastfd::transport {
namespace {

/// Tells the two handshakes apart, should an address be of the wrong kind.
constexpr std::uint64_t kNcclMagic = 0x4c43434e46545346;  // "FSTFNCCL"

HandshakeMessage stamped(HandshakeMessage message) {
  message.magic = kNcclMagic;
  return message;
}

Status check_stamp(const HandshakeMessage& message) {
  if (message.magic != kNcclMagic) {
    return {StatusCode::kInvalidArgument,
            "the process at the other end does not speak the rendezvous of transport nccl; check "
            "the data-plane address"};
  }
  if (message.version != kHandshakeVersion) {
    return {StatusCode::kInvalidArgument,
            fmt::format("handshake version is {} here and {} there; run the same fastfd build on "
                        "all servers",
                        kHandshakeVersion, message.version)};
  }
  return Status::ok();
}

Status check_same_shape(const HandshakeMessage& message, const WindowShape& here) {
  if (message.shape == here) {
    return Status::ok();
  }
  return {StatusCode::kInvalidArgument,
          fmt::format("{} has other windows: {}; start all servers with one cluster file and one "
                      "model",
                      server_name(message.role, message.rank),
                      describe_difference(here, message.shape))};
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Everything that is sent here fits a new connection's buffer many times.
Status send_whole(const UniqueFd& socket, std::span<const std::byte> bytes) {
  const auto sent = send_bytes(socket, bytes);
  if (!sent) {
    return sent.status();
  }
  return *sent == bytes.size() ? Status::ok()
                               : Status(StatusCode::kUnavailable, "it takes no data");
}

/// Maker's side of one epoch.
class Maker {
 public:
  Maker(const LocalServer& self, const TcpListener& listener, Epoch epoch,
        std::span<const NcclMember> members, std::span<const NcclId> ids, const Deadline& deadline,
        std::vector<NcclCall>& waiting)
      : self_(self),
        listener_(listener),
        epoch_(epoch),
        ids_(ids),
        deadline_(deadline),
        waiting_(waiting),
        calls_(std::exchange(waiting, {})) {
    for (const NcclMember& member : members) {
      if (member.role != self.role || member.rank != self.rank) {
        missing_.push_back(&member);
        members_.push_back(&member);
      }
    }
  }

  Status run() {
    while (!missing_.empty()) {
      for (UniqueFd socket = accept_tcp(listener_.socket); socket.is_open();
           socket = accept_tcp(listener_.socket)) {
        calls_.push_back({std::move(socket), {}, 0});
      }
      for (NcclCall& call : calls_) {
        if (Status status = advance(call); !status) {
          return status;
        }
      }
      std::erase_if(calls_, [](const NcclCall& call) { return !call.socket.is_open(); });
      if (missing_.empty()) {
        break;
      }
      if (deadline_.is_cancelled()) {
        return {StatusCode::kAborted, "handing out NCCL's ids was cancelled"};
      }
      if (deadline_.is_over()) {
        return {StatusCode::kDeadlineExceeded, describe_missing()};
      }
      wait_for_events();
    }
    // Whoever has not said hello in full is for a later epoch or has given up.
    std::move(calls_.begin(), calls_.end(), std::back_inserter(waiting_));
    return Status::ok();
  }

 private:
  void wait_for_events() {
    std::vector<pollfd> sockets{{listener_.socket.get(), POLLIN, 0}};
    for (const NcclCall& call : calls_) {
      sockets.push_back({call.socket.get(), POLLIN, 0});
    }
    ::poll(sockets.data(), sockets.size(), deadline_.slice_ms());
  }

  /// One look at a call. Never blocks; an error ends the whole attempt.
  Status advance(NcclCall& call) {
    auto buffer = std::as_writable_bytes(std::span(&call.hello, 1)).subspan(call.num_bytes);
    if (!buffer.empty()) {
      const auto received = receive_bytes(call.socket, buffer);
      if (!received) {
        call.socket.reset();  // it gave up its attempt, or died; it may call again
        return Status::ok();
      }
      call.num_bytes += *received;
      if (*received < buffer.size()) {
        return Status::ok();
      }
    }
    return answer(call);
  }

  Status answer(NcclCall& call) {
    const HandshakeMessage& hello = call.hello;
    if (Status status = check_stamp(hello); !status) {
      refuse(call, status);  // anybody may knock at a port: not this server's failure
      return Status::ok();
    }
    if (hello.epoch > epoch_) {
      waiting_.push_back(std::move(call));
      return Status::ok();
    }
    const auto member = std::find_if(members_.begin(), members_.end(), [&](const auto* candidate) {
      return candidate->role == hello.role && candidate->rank == hello.rank;
    });
    Status status = check_epoch(hello, epoch_);
    if (status && member == members_.end()) {
      status =
          Status(StatusCode::kInvalidArgument,
                 fmt::format("{} is not in epoch {}", server_name(hello.role, hello.rank), epoch_));
    }
    if (status) {
      status = check_incarnation(hello, (*member)->incarnation);
    }
    if (!status) {
      refuse(call, status);
      return Status::ok();
    }
    if (status = check_same_shape(hello, self_.shape); !status) {
      refuse(call, status);
      return status;
    }
    hand_out(call, **member);
    return Status::ok();
  }

  static void refuse(NcclCall& call, const Status& reason) {
    spdlog::warn("refused a call for NCCL's ids: {}", reason.message());
    static_cast<void>(send_whole(call.socket, bytes_of(stamped(make_refusal(reason)))));
    call.socket.reset();
  }

  void hand_out(NcclCall& call, const NcclMember& member) {
    HandshakeMessage accept = stamped(make_hello(self_, epoch_));
    accept.kind = MessageKind::kAccept;
    const auto num_ids = static_cast<std::uint32_t>(ids_.size());
    Status status = send_whole(call.socket, bytes_of(accept));
    if (status) {
      status = send_whole(call.socket, bytes_of(num_ids));
    }
    if (status) {
      status = send_whole(call.socket, std::as_bytes(ids_));
    }
    call.socket.reset();
    if (status) {
      std::erase(missing_, &member);
    }
  }

  std::string describe_missing() const {
    std::vector<std::string> names;
    for (const NcclMember* member : missing_) {
      names.push_back(
          fmt::format("{} at {}", server_name(member->role, member->rank), member->address));
    }
    return fmt::format(
        "{} at {} was not asked for NCCL's ids of epoch {} by {} (timeout {} ms); check that they "
        "run and that they reach this address",
        server_name(self_.role, self_.rank), listener_.address, epoch_, fmt::join(names, ", "),
        deadline_.timeout().count());
  }

  const LocalServer& self_;
  const TcpListener& listener_;
  Epoch epoch_;
  std::span<const NcclId> ids_;
  const Deadline& deadline_;
  std::vector<NcclCall>& waiting_;
  std::vector<NcclCall> calls_;
  std::vector<const NcclMember*> members_;  // but this one
  std::vector<const NcclMember*> missing_;
};

/// The others' side of one epoch.
class Fetcher {
 public:
  Fetcher(const LocalServer& self, Epoch epoch, const NcclMember& maker, std::uint32_t num_ids,
          const Deadline& deadline)
      : self_(self), epoch_(epoch), maker_(maker), num_ids_(num_ids), deadline_(deadline) {}

  Result<std::vector<NcclId>> run() {
    for (;;) {
      auto ids = attempt();
      if (ids) {
        return ids;
      }
      const Status& status = ids.status();
      if (is_final_ || status.code() == StatusCode::kInvalidArgument) {
        return Status(status.code(),
                      fmt::format("{} at {}: {}", server_name(maker_.role, maker_.rank),
                                  maker_.address, status.message()));
      }
      if (status.code() != StatusCode::kUnavailable) {
        return status;  // out of patience
      }
      if (Status over = patience(status.message()); !over) {
        return over;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.slice_ms()));
    }
  }

 private:
  /// OK while there is time; `state` is what is waited for.
  Status patience(const std::string& state) const {
    if (deadline_.is_cancelled()) {
      return {StatusCode::kAborted, "fetching NCCL's ids was cancelled"};
    }
    if (!deadline_.is_over()) {
      return Status::ok();
    }
    return {StatusCode::kDeadlineExceeded,
            fmt::format("{} has no ids of NCCL for epoch {} from {} at {} ({}; timeout {} ms); "
                        "check that it runs and that its data-plane address is reached from here",
                        server_name(self_.role, self_.rank), epoch_,
                        server_name(maker_.role, maker_.rank), maker_.address, state,
                        deadline_.timeout().count())};
  }

  /// kUnavailable is worth another try, unless it was the maker's verdict.
  Result<std::vector<NcclId>> attempt() {
    const auto socket = dial_tcp(maker_.address);
    if (!socket) {
      return socket.status();
    }
    Status status = await(*socket, POLLOUT, "it can't be reached");
    if (status) {
      status = dial_outcome(*socket);
    }
    if (status) {
      status = send_whole(*socket, bytes_of(stamped(make_hello(self_, epoch_))));
    }
    HandshakeMessage answer;
    if (status) {
      status = receive_whole(*socket, std::as_writable_bytes(std::span(&answer, 1)));
    }
    if (status) {
      status = check_answer(answer);
    }
    std::uint32_t num_ids = 0;
    if (status) {
      status = receive_whole(*socket, std::as_writable_bytes(std::span(&num_ids, 1)));
    }
    if (status && num_ids != num_ids_) {
      status = Status(StatusCode::kInvalidArgument,
                      fmt::format("it makes {} communicators where {} are expected; start all "
                                  "servers with one cluster file",
                                  num_ids, num_ids_));
    }
    std::vector<NcclId> ids(num_ids_);
    if (status) {
      status = receive_whole(*socket, std::as_writable_bytes(std::span(ids)));
    }
    if (!status) {
      return status;
    }
    return ids;
  }

  Status check_answer(const HandshakeMessage& answer) {
    Status status = check_stamp(answer);
    if (status && answer.kind == MessageKind::kRefusal) {
      is_final_ = true;
      return refusal_reason(answer);
    }
    if (status) {
      status = check_identity(answer, maker_.role, maker_.rank);
    }
    if (status) {
      status = check_epoch(answer, epoch_);
    }
    return status ? check_same_shape(answer, self_.shape) : status;
  }

  Status await(const UniqueFd& socket, short events, const char* state) const {
    for (;;) {
      pollfd waiting{socket.get(), events, 0};
      if (::poll(&waiting, 1, deadline_.slice_ms()) > 0) {
        return Status::ok();
      }
      if (Status over = patience(state); !over) {
        return over;
      }
    }
  }

  Status receive_whole(const UniqueFd& socket, std::span<std::byte> buffer) const {
    while (!buffer.empty()) {
      const auto received = receive_bytes(socket, buffer);
      if (!received) {
        return received.status();
      }
      buffer = buffer.subspan(*received);
      if (*received == 0) {
        if (Status status = await(socket, POLLIN, "it listens but has not answered"); !status) {
          return status;
        }
      }
    }
    return Status::ok();
  }

  const LocalServer& self_;
  Epoch epoch_;
  const NcclMember& maker_;
  std::uint32_t num_ids_;
  const Deadline& deadline_;
  bool is_final_ = false;
};

}  // namespace

Status hand_out_ids(const LocalServer& self, const TcpListener& listener, Epoch epoch,
                    std::span<const NcclMember> members, std::span<const NcclId> ids,
                    const Deadline& deadline, std::vector<NcclCall>& waiting) {
  return Maker(self, listener, epoch, members, ids, deadline, waiting).run();
}

Result<std::vector<NcclId>> fetch_ids(const LocalServer& self, Epoch epoch, const NcclMember& maker,
                                      std::uint32_t num_ids, const Deadline& deadline) {
  return Fetcher(self, epoch, maker, num_ids, deadline).run();
}

}  // namespace fastfd::transport
