#include "gateway/reasoning_splitter.h"

#include <algorithm>
#include <utility>

namespace fastfd::gateway {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

/// Bytes at the end of `text` that `tag` could begin with.
std::size_t num_bytes_of_tag(std::string_view text, std::string_view tag) {
  for (std::size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) {
      return n;
    }
  }
  return 0;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(AnswerStart start)
    : state_(start == AnswerStart::kContent ? State::kContent : State::kBeforeTag),
      is_reasoning_without_tag_(start == AnswerStart::kReasoning) {}

ReasoningSplitter::Piece ReasoningSplitter::push(std::string_view text) {
  Piece piece;
  held_ += text;
  if (state_ == State::kBeforeTag) {
    read_before_tag(piece);
  }
  if (state_ == State::kReasoning) {
    read_reasoning(piece);
  }
  if (state_ == State::kContent) {
    piece.content += std::exchange(held_, {});
  }
  return piece;
}

void ReasoningSplitter::read_before_tag(Piece& piece) {
  const std::size_t begin = std::min(held_.find_first_not_of(kSpace), held_.size());
  const std::string_view text = std::string_view(held_).substr(begin);
  if (text.starts_with(kReasoningOpen)) {
    held_.erase(0, begin + kReasoningOpen.size());
    state_ = State::kReasoning;
  } else if (!kReasoningOpen.starts_with(text)) {
    state_ = is_reasoning_without_tag_ ? State::kReasoning : State::kContent;
  } else if (is_reasoning_without_tag_ && text.empty()) {
    // Space in front of reasoning is reasoning; there is nothing to decide about it.
    piece.reasoning += std::exchange(held_, {});
  }
}

void ReasoningSplitter::read_reasoning(Piece& piece) {
  const std::size_t close = held_.find(kReasoningClose);
  if (close != std::string::npos) {
    piece.reasoning += held_.substr(0, close);
    held_.erase(0, close + kReasoningClose.size());
    state_ = State::kContent;
    return;
  }
  const std::size_t keep = num_bytes_of_tag(held_, kReasoningClose);
  piece.reasoning += held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
}

ReasoningSplitter::Piece ReasoningSplitter::finish() {
  const bool is_reasoning =
      state_ == State::kReasoning || (state_ == State::kBeforeTag && is_reasoning_without_tag_);
  Piece piece;
  (is_reasoning ? piece.reasoning : piece.content) = std::exchange(held_, {});
  state_ = State::kContent;
  return piece;
}

}  // namespace fastfd::gateway
