#include "fastfd/text/detokenizer.h"

#include "text/tokenizer_impl.h"

namespace fastfd {

struct IncrementalDetokenizer::State {
  const Tokenizer::Impl* tokenizer;
  bool skip_special_tokens;
  text::DecodeStream stream;
};

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(std::make_unique<State>(
          State{tokenizer.impl_.get(), skip_special_tokens,
                text::DecodeStream(tokenizer.impl_->decoder,
                                   text::DecodeStream::Fallback::kByCharacter)})) {}

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

void IncrementalDetokenizer::continue_from(std::span<const TokenId> context) {
  // What is before the last few tokens can only matter as the beginning of the text.
  constexpr std::size_t kTail = 8;
  std::string ignored;
  std::size_t next = 0;
  while (next < context.size() && !state_->stream.has_started()) {
    push(context[next++], ignored);
  }
  if (context.size() - next > kTail) {
    state_->stream.forget_pending();
    next = context.size() - kTail;
  }
  for (const TokenId token : context.subspan(next)) {
    push(token, ignored);
  }
}

std::string IncrementalDetokenizer::push(TokenId token) {
  std::string out;
  push(token, out);
  return out;
}

void IncrementalDetokenizer::push(TokenId token, std::string& out) {
  state_->tokenizer->push(token, state_->skip_special_tokens, state_->stream, out);
}

std::string IncrementalDetokenizer::flush() {
  std::string out;
  state_->stream.flush(out);
  return out;
}

bool IncrementalDetokenizer::has_pending() const { return state_->stream.has_pending(); }

}  // namespace fastfd
