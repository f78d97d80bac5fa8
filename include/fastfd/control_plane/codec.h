#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "fastfd/control_plane/messages.h"
#include "fastfd/core/status.h"

namespace fastfd::control_plane {

/// Values <-> serialized fastfd.v1 messages. Reuses its buffers from call to call, so keep one a
/// thread; not thread-safe.
class Codec {
 public:
  Codec();
  ~Codec();
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// Replaces the contents of `bytes`, whose capacity is reused.
  void encode(const CoordinatorMessage& message, std::string* bytes);
  void encode(const ServerMessage& message, std::string* bytes);

  /// kInvalidArgument for anything that is no such message or breaks its rules (columns of unequal
  /// length, lanes out of order or range, unknown enum values); never undefined behaviour,
  /// whatever the bytes.
  Result<CoordinatorMessage> decode_coordinator_message(std::string_view bytes);
  Result<ServerMessage> decode_server_message(std::string_view bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::control_plane
