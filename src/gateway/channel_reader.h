#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fastfd/gateway/text_service.h"

namespace fastfd::gateway {

/// Follows the messages of an answer in OpenAI's harmony format
/// (https://cookbook.openai.com/articles/openai-harmony):
///
///     <|channel|>analysis<|message|>...<|end|>
///     <|start|>assistant<|channel|>final<|message|>...<|return|>
///
/// What is in channel analysis is reasoning; everything else is content. A message to a recipient
/// ("commentary to=functions.f") is a call: content with its header, as the model wrote it. Works
/// on tokens, so text that only looks like a marker is text. One answer, one thread at a time.
class ChannelReader {
 public:
  /// `prompt` decides where the answer begins: behind a header's start, or within a message. `text`
  /// must outlive the reader.
  ChannelReader(const ChannelTokens& tokens, const TextService& text,
                std::span<const TokenId> prompt);

  /// What the next token of the answer is.
  struct Step {
    bool is_text = false;     ///< of the message that is_reasoning() speaks of
    bool ends_text = false;   ///< what that message's text held back until now is to be written
    std::string call_header;  ///< content, before any text
  };
  Step push(TokenId token);

  /// Of the message that is being written, or was last.
  bool is_reasoning() const { return is_reasoning_; }

 private:
  enum class State : std::uint8_t { kMessage, kHeader, kBetween };

  bool ends_message(TokenId token) const;
  void begin_header();
  void begin_message(Step& step);

  ChannelTokens tokens_;
  const TextService& text_;
  State state_ = State::kMessage;
  bool is_reasoning_ = false;
  std::string header_;                          // role, channel, recipient and markers between them
  std::size_t channel_at_ = std::string::npos;  // in header_, behind the marker
};

}  // namespace fastfd::gateway
