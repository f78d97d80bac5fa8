#pragma once

#include <memory>
#include <string>

#include "fastfd/gateway/gateway_server.h"
#include "fastfd/gateway/text_service.h"

namespace fastfd::gateway {

inline constexpr TokenId kFakeEos = 256;
inline constexpr TokenId kFakeBos = 257;
inline constexpr TokenId kFakeStart = 1;  // of ChannelTokens, the others behind it in their order
inline constexpr std::uint32_t kFakeVocabSize = 264;  // the last few have no text: padding
inline constexpr const char* kFakeModelName = "fake-model";

/// A token is a byte. 256 is "<eos>", 257 "<bos>". Chats are rendered as "role: content\n" lines; a
/// message with the content "refuse me" is refused.
std::shared_ptr<const TextService> make_fake_text();

/// The fake text with a context of `max_model_len` tokens, greedy unless asked otherwise.
ServedModel make_fake_model(std::uint32_t max_model_len = 4096);

}  // namespace fastfd::gateway
