#include "transport/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fastfd/transport/window_shape.h"

namespace fastfd::transport {

namespace {

void set_text(HandshakeMessage& message, const std::string& text) {
  std::memcpy(message.text.data(), text.data(), std::min(text.size(), message.text.size() - 1));
}

}  // namespace

const char* transport_name(WindowKind kind) {
  switch (kind) {
    case WindowKind::kSharedMemory:
      return "shm";
    case WindowKind::kGpuMemory:
      return "cuda_ipc";
  }
  return "unknown";
}

std::string server_name(Role role, ServerRank rank) {
  return fmt::format("{} server {}", role == Role::kFfn ? "FFN" : "attention", rank);
}

HandshakeMessage make_hello(const LocalServer& self, Epoch epoch) {
  HandshakeMessage message;
  message.role = self.role;
  message.rank = self.rank;
  message.incarnation = self.incarnation;
  message.epoch = epoch;
  message.shape = self.shape;
  message.windows = self.windows;
  set_text(message, self.place);
  return message;
}

HandshakeMessage make_refusal(const Status& reason) {
  HandshakeMessage message;
  message.kind = MessageKind::kRefusal;
  message.code = reason.code();
  set_text(message, reason.message());
  return message;
}

std::string text_of(const HandshakeMessage& message) {
  return {message.text.begin(), std::find(message.text.begin(), message.text.end(), '\0')};
}

Status refusal_reason(const HandshakeMessage& message) {
  const bool is_known = message.code > StatusCode::kOk && message.code <= StatusCode::kInternal;
  return Status(is_known ? message.code : StatusCode::kInternal,
                fmt::format("it refused the connection: {}", text_of(message)));
}

Status send_message(const UniqueFd& socket, const HandshakeMessage& message,
                    std::span<const int> fds) {
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds);
}

Result<std::optional<ReceivedMessage>> receive_message(const UniqueFd& socket) {
  ReceivedMessage received;
  Result<std::optional<Packet>> packet =
      receive_packet(socket, std::as_writable_bytes(std::span(&received.message, 1)));
  if (!packet) {
    return packet.status();
  }
  if (!packet->has_value()) {
    return std::optional<ReceivedMessage>();
  }
  constexpr std::size_t kPrefixBytes = offsetof(HandshakeMessage, kind);
  const std::size_t num_bytes = (*packet)->num_bytes;
  if (num_bytes < kPrefixBytes || received.message.magic != kHandshakeMagic) {
    return Status(StatusCode::kInvalidArgument,
                  "the process at the other end does not speak FastFD's handshake; check the "
                  "data-plane address");
  }
  if (received.message.version != kHandshakeVersion || num_bytes != sizeof(HandshakeMessage)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("handshake version is {} here and {} there; run the same fastfd "
                              "build on all servers",
                              kHandshakeVersion, received.message.version));
  }
  received.fds = std::move((*packet)->fds);
  return std::optional<ReceivedMessage>(std::move(received));
}

Status check_identity(const HandshakeMessage& hello, Role role, ServerRank rank) {
  if (hello.role == role && hello.rank == rank) {
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("expected {} but met {}; check the data-plane addresses",
                            server_name(role, rank), server_name(hello.role, hello.rank)));
}

Status check_incarnation(const HandshakeMessage& hello, std::uint64_t expected) {
  if (hello.incarnation == expected) {
    return Status::ok();
  }
  return Status(StatusCode::kUnavailable,
                fmt::format("{} is incarnation {}, the topology names incarnation {}: it was "
                            "restarted or replaced, wait for the next epoch",
                            server_name(hello.role, hello.rank), hello.incarnation, expected));
}

Status check_epoch(const HandshakeMessage& hello, Epoch expected) {
  if (hello.epoch == expected) {
    return Status::ok();
  }
  return Status(StatusCode::kAborted,
                fmt::format("{} connects for epoch {}, here it is epoch {}",
                            server_name(hello.role, hello.rank), hello.epoch, expected));
}

Status check_windows(const HandshakeMessage& hello, WindowKind kind_here,
                     const WindowShape& shape_here) {
  std::string difference;
  if (hello.windows != kind_here) {
    difference = fmt::format("transport.kind is {} here and {} there", transport_name(kind_here),
                             transport_name(hello.windows));
  } else if (hello.shape != shape_here) {
    difference = describe_difference(shape_here, hello.shape);
  } else {
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} has other windows: {}; start all servers with one cluster file and "
                            "one model",
                            server_name(hello.role, hello.rank), difference));
}

}  // namespace fastfd::transport
