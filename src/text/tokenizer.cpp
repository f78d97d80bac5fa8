#include "fastfd/text/tokenizer.h"

#include <utility>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace fastfd {
namespace text {

std::unique_ptr<EncodeWorkspace> WorkspacePool::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::make_unique<EncodeWorkspace>();
}

void WorkspacePool::release(std::unique_ptr<EncodeWorkspace> workspace) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) {
    idle_.push_back(std::move(workspace));
  }
}

}  // namespace text

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special,
                                       bool add_special_tokens) const {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size() / 4 + 8);
  std::string repaired;
  if (!text::is_valid_utf8(text)) {
    repaired = text::replace_invalid_utf8(text);
    text = repaired;
  }
  auto workspace = impl_->workspaces.acquire();
  if (add_special_tokens) {
    tokens = impl_->prefix;
  }
  workspace->raw_parts.clear();
  impl_->raw_added.split(text, parse_special, workspace->raw_parts);
  for (const auto& part : workspace->raw_parts) {
    if (part.id != kNoToken) {
      tokens.push_back(part.id);
    } else {
      const bool starts_text = part.text.data() == text.data();
      impl_->encode_piece(part.text, starts_text, parse_special, *workspace, tokens);
    }
  }
  if (add_special_tokens) {
    tokens.insert(tokens.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  // After an exception the workspace is simply dropped.
  impl_->workspaces.release(std::move(workspace));
  return tokens;
}

void Tokenizer::Impl::encode_piece(std::string_view piece, bool starts_text, bool parse_special,
                                   text::EncodeWorkspace& workspace,
                                   std::vector<TokenId>& out) const {
  piece =
      normalizer.apply(piece, workspace.normalized, workspace.normalized_spare, workspace.regex);
  if (normalized_added.empty()) {
    encode_words(piece, starts_text, workspace, out);
    return;
  }
  workspace.normalized_parts.clear();
  normalized_added.split(piece, parse_special, workspace.normalized_parts);
  for (const auto& part : workspace.normalized_parts) {
    if (part.id != kNoToken) {
      out.push_back(part.id);
    } else {
      encode_words(part.text, starts_text && part.text.data() == piece.data(), workspace, out);
    }
  }
}

void Tokenizer::Impl::encode_words(std::string_view piece, bool starts_text,
                                   text::EncodeWorkspace& workspace,
                                   std::vector<TokenId>& out) const {
  text::WordList& list = workspace.words;
  list.text = piece;
  list.starts_text = starts_text;
  pre_tokenizer.split(list, workspace.regex);
  for (const text::Span span : list.words) {
    const std::string_view word = list.text.substr(span.begin, span.end - span.begin);
    const bool cacheable = text::WordCache::fits(word);
    if (cacheable && workspace.cache.append(word, out)) {
      continue;
    }
    const std::size_t first = out.size();
    model.encode_word(word, workspace.bpe, out);
    if (cacheable) {
      workspace.cache.insert(word, out.data() + first, out.size() - first);
    }
  }
}

void Tokenizer::Impl::push(TokenId token, bool skip_special, text::DecodeStream& stream,
                           std::string& out) const {
  const TokenText* text = find(token);
  if (text == nullptr || (skip_special && text->special)) {
    return;
  }
  const auto first = first_texts.empty() ? first_texts.end() : first_texts.find(token);
  stream.push(bytes_of(*text), text->is_byte, first == first_texts.end() ? nullptr : &first->second,
              out);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool skip_special_tokens) const {
  std::string out;
  text::DecodeStream stream(impl_->decoder, text::DecodeStream::Fallback::kByRun);
  for (const TokenId token : tokens) {
    impl_->push(token, skip_special_tokens, stream, out);
  }
  stream.flush(out);
  return out;
}

std::string_view Tokenizer::token_to_bytes(TokenId token) const {
  const auto* text = impl_->find(token);
  return text == nullptr ? std::string_view() : impl_->bytes_of(*text);
}

std::size_t Tokenizer::vocab_size() const { return impl_->texts.size(); }

bool Tokenizer::is_special(TokenId token) const {
  const auto* text = impl_->find(token);
  return text != nullptr && text->special;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const {
  if (const auto it = impl_->added_ids.find(content); it != impl_->added_ids.end()) {
    return it->second;
  }
  const auto& vocab = impl_->model.vocab();
  if (const auto it = vocab.find(content); it != vocab.end()) {
    return it->second;
  }
  return std::nullopt;
}

namespace {

std::optional<TokenId> named_token(const Tokenizer& tokenizer, const char* name) {
  const auto it = tokenizer.special_tokens().find(name);
  return it == tokenizer.special_tokens().end() ? std::nullopt : tokenizer.token_id(it->second);
}

}  // namespace

std::optional<TokenId> Tokenizer::bos_token() const { return named_token(*this, "bos_token"); }
std::optional<TokenId> Tokenizer::eos_token() const { return named_token(*this, "eos_token"); }
std::optional<TokenId> Tokenizer::pad_token() const { return named_token(*this, "pad_token"); }

const std::map<std::string, std::string>& Tokenizer::special_tokens() const {
  return impl_->special_tokens;
}

}  // namespace fastfd
