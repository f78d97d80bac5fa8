#pragma once

/// Messages with which two servers exchange windows:
///
///   attention server               FFN server
///     hello + {descriptors}     ->   checks
///     checks                    <-   hello + {descriptors}
///     accept                    ->   the pair is connected
///
/// Either side may answer with a refusal and the reason instead. The descriptors are those of a
/// combine window there and a dispatch window back, with `shm` of a doorbell as well.

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/port.h"
#include "transport/unix_socket.h"

namespace fastfd::transport {

inline constexpr std::uint64_t kHandshakeMagic = 0x4d48534446545346;  // "FSTFDSHM"
/// Raise it when this message or a layout in kernels/layout changes.
inline constexpr std::uint32_t kHandshakeVersion = 2;

enum class MessageKind : std::uint32_t { kHello = 1, kAccept = 2, kRefusal = 3 };

/// What windows are made of, which both ends must agree on.
enum class WindowKind : std::uint32_t { kSharedMemory = 1, kGpuMemory = 2 };
/// The transport that has such windows: "shm", "cuda_ipc".
const char* transport_name(WindowKind kind);

/// Sent as it lies in memory: both ends are on one host. The first two fields never move, so that
/// any two versions can tell that they differ.
struct HandshakeMessage {
  std::uint64_t magic = kHandshakeMagic;
  std::uint32_t version = kHandshakeVersion;
  MessageKind kind = MessageKind::kHello;
  std::uint64_t incarnation = 0;
  Epoch epoch = 0;
  ServerRank rank = 0;
  WindowShape shape;
  Role role = Role::kAttention;
  WindowKind windows = WindowKind::kSharedMemory;
  StatusCode code = StatusCode::kOk;  ///< refusal only
  std::array<char, 512> text{};       ///< zero-terminated; hello: LocalServer::place; refusal: why
};
static_assert(std::is_trivially_copyable_v<HandshakeMessage>);

/// The server that this process is.
struct LocalServer {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;
  WindowShape shape;
  WindowKind windows = WindowKind::kSharedMemory;
  std::string place{};  ///< for people: the GPU that has its windows; empty with shared memory
};

/// "FFN server 1"
std::string server_name(Role role, ServerRank rank);

HandshakeMessage make_hello(const LocalServer& self, Epoch epoch);
HandshakeMessage make_refusal(const Status& reason);
std::string text_of(const HandshakeMessage& message);
/// The reason a peer gave: "it refused the connection: ...". Requires kind kRefusal.
Status refusal_reason(const HandshakeMessage& message);

Status send_message(const UniqueFd& socket, const HandshakeMessage& message,
                    std::span<const int> fds = {});

struct ReceivedMessage {
  HandshakeMessage message;
  std::vector<UniqueFd> fds;
};

/// Nothing if no message is there yet. kInvalidArgument for one that is not of this protocol and
/// version, kUnavailable if the other end has closed. Never blocks.
Result<std::optional<ReceivedMessage>> receive_message(const UniqueFd& socket);

/// Checks of a hello, one a field that can differ. OK, or the reason with both values and a remedy.
Status check_identity(const HandshakeMessage& hello, Role role, ServerRank rank);
Status check_incarnation(const HandshakeMessage& hello, std::uint64_t expected);
Status check_epoch(const HandshakeMessage& hello, Epoch expected);
/// Both what windows are made of and their shape.
Status check_windows(const HandshakeMessage& hello, WindowKind kind_here,
                     const WindowShape& shape_here);

}  // namespace fastfd::transport
