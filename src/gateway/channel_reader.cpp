#include "gateway/channel_reader.h"

#include <algorithm>
#include <string_view>

namespace fastfd::gateway {
namespace {

constexpr std::string_view kReasoningChannel = "analysis";
constexpr std::string_view kRecipient = " to=";

/// Up to what can't be part of a channel's name.
std::string_view first_word(std::string_view text) {
  return text.substr(0, text.find_first_of(" \t\r\n<"));
}

}  // namespace

ChannelReader::ChannelReader(const ChannelTokens& tokens, const TextService& text,
                             std::span<const TokenId> prompt)
    : tokens_(tokens), text_(text) {
  const auto start = std::find(prompt.rbegin(), prompt.rend(), tokens.start);
  if (start == prompt.rend()) {
    return;  // no conversation in this format: all is content
  }
  for (const TokenId token : prompt.last(static_cast<std::size_t>(start - prompt.rbegin()) + 1)) {
    push(token);
  }
}

bool ChannelReader::ends_message(TokenId token) const {
  return token != kNoToken &&
         (token == tokens_.end || token == tokens_.call || token == tokens_.done);
}

void ChannelReader::begin_header() {
  state_ = State::kHeader;
  header_.clear();
  channel_at_ = std::string::npos;
}

void ChannelReader::begin_message(Step& step) {
  state_ = State::kMessage;
  const bool has_channel = channel_at_ != std::string::npos;
  const std::string_view header = header_;
  const std::string_view channel = has_channel ? header.substr(channel_at_) : std::string_view();
  // Either the role or the channel names the recipient.
  const bool is_call = header.find(kRecipient) != std::string_view::npos;
  is_reasoning_ = !is_call && first_word(channel) == kReasoningChannel;
  if (is_call) {
    step.call_header = text_.token_bytes(tokens_.start);
    step.call_header += header_;
    step.call_header += text_.token_bytes(tokens_.message);
  }
}

ChannelReader::Step ChannelReader::push(TokenId token) {
  Step step;
  if (ends_message(token)) {
    step.ends_text = state_ == State::kMessage;
    state_ = State::kBetween;
    return step;
  }
  if (token == tokens_.start) {
    step.ends_text = state_ == State::kMessage;
    begin_header();
    return step;
  }
  if (token == tokens_.channel && state_ != State::kHeader) {
    // The answer's first token if the prompt ends without a header, or an <|end|> was forgotten.
    step.ends_text = state_ == State::kMessage;
    begin_header();
  }
  if (token == tokens_.message && state_ != State::kMessage) {
    begin_message(step);
    return step;
  }
  if (state_ == State::kHeader) {
    header_ += text_.token_bytes(token);
    channel_at_ = token == tokens_.channel ? header_.size() : channel_at_;
    return step;
  }
  if (state_ == State::kBetween) {
    // Text where a header is due is content.
    state_ = State::kMessage;
    is_reasoning_ = false;
  }
  step.is_text = token != tokens_.message && token != tokens_.constrain;
  return step;
}

}  // namespace fastfd::gateway
