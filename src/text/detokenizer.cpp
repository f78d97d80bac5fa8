#include "fastfd/text/detokenizer.h"

#include "text/utf8.h"

namespace fastfd {

struct IncrementalDetokenizer::State {
  const Tokenizer* tokenizer;
  bool skip_special_tokens;
  text::Utf8Stream stream;
};

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(std::make_unique<State>(State{&tokenizer, skip_special_tokens, {}})) {}

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::push(TokenId token) {
  std::string out;
  push(token, out);
  return out;
}

void IncrementalDetokenizer::push(TokenId token, std::string& out) {
  if (!state_->skip_special_tokens || !state_->tokenizer->is_special(token)) {
    state_->stream.push(state_->tokenizer->token_to_bytes(token), out);
  }
}

std::string IncrementalDetokenizer::flush() {
  std::string out;
  state_->stream.flush(out);
  return out;
}

bool IncrementalDetokenizer::has_pending() const { return state_->stream.has_pending(); }

}  // namespace fastfd
