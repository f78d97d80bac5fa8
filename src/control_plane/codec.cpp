#include "fastfd/control_plane/codec.h"

#include <google/protobuf/arena.h>

#include <array>
#include <cstddef>
#include <utility>

#include "control_plane/convert.h"

namespace fastfd::control_plane {
namespace {

template <typename Message, typename Proto>
Result<Message> decode(std::string_view bytes, google::protobuf::Arena* arena) {
  arena->Reset();  // of the message before
  auto* proto = google::protobuf::Arena::CreateMessage<Proto>(arena);
  if (bytes.size() > kMaxMessageBytes ||
      !proto->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status(StatusCode::kInvalidArgument, "the message does not parse");
  }
  Message message;
  if (auto error = from_proto(*proto, &message); !error.empty()) {
    return Status(StatusCode::kInvalidArgument, std::move(error));
  }
  return message;
}

}  // namespace

class Codec::Impl {
 public:
  // Clearing a message frees its oneof member, so parsing reuses memory through an arena and
  // encoding by refilling the same member.
  v1::CoordinatorMessage coordinator_message;
  v1::ServerMessage server_message;
  std::array<char, 64 << 10> block{};
  google::protobuf::Arena arena{block.data(), block.size()};
};

Codec::Codec() : impl_(std::make_unique<Impl>()) {}
Codec::~Codec() = default;

void Codec::encode(const CoordinatorMessage& message, std::string* bytes) {
  to_proto(message, &impl_->coordinator_message);
  impl_->coordinator_message.SerializeToString(bytes);
}

void Codec::encode(const ServerMessage& message, std::string* bytes) {
  to_proto(message, &impl_->server_message);
  impl_->server_message.SerializeToString(bytes);
}

Result<CoordinatorMessage> Codec::decode_coordinator_message(std::string_view bytes) {
  return decode<CoordinatorMessage, v1::CoordinatorMessage>(bytes, &impl_->arena);
}

Result<ServerMessage> Codec::decode_server_message(std::string_view bytes) {
  return decode<ServerMessage, v1::ServerMessage>(bytes, &impl_->arena);
}

}  // namespace fastfd::control_plane
