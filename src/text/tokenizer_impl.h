#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fastfd/text/tokenizer.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/token_decoder.h"
#include "text/word_cache.h"

namespace fastfd {

namespace text {

/// Everything one encode call writes to. Taken from a pool, so that calls share nothing and the
/// word cache stays warm.
struct EncodeWorkspace {
  RegexScratch regex;
  WordList words;
  BpeScratch bpe;
  WordCache cache;
  std::string normalized;
  std::string normalized_spare;
  std::vector<AddedTokenSplitter::Part> raw_parts;
  std::vector<AddedTokenSplitter::Part> normalized_parts;
};

class WorkspacePool {
 public:
  std::unique_ptr<EncodeWorkspace> acquire();
  void release(std::unique_ptr<EncodeWorkspace> workspace);

 private:
  static constexpr std::size_t kMaxIdle = 16;  // about 2.5 MB each
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeWorkspace>> idle_;
};

}  // namespace text

struct Tokenizer::Impl {
  struct TokenText {
    std::size_t offset = 0;
    std::uint32_t num_bytes = 0;
    bool special = false;
    bool is_byte = false;  ///< one of a byte fallback's
  };

  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  text::BpeModel model;
  text::TokenDecoder decoder;
  text::AddedTokenSplitter raw_added;         // looked for before normalisation
  text::AddedTokenSplitter normalized_added;  // looked for after it
  std::map<std::string, TokenId, std::less<>> added_ids;
  std::string bytes;                                     // of all tokens, one after the other
  std::vector<TokenText> texts;                          // [vocab_size], into `bytes`
  std::unordered_map<TokenId, std::string> first_texts;  // where the first of a text differs
  std::vector<TokenId> prefix;  // what the post-processor puts before a text
  std::vector<TokenId> suffix;
  std::map<std::string, std::string> special_tokens;
  mutable text::WorkspacePool workspaces;

  /// `starts_text`: no token stands before the piece.
  void encode_piece(std::string_view piece, bool starts_text, bool parse_special,
                    text::EncodeWorkspace& workspace, std::vector<TokenId>& out) const;
  void encode_words(std::string_view piece, bool starts_text, text::EncodeWorkspace& workspace,
                    std::vector<TokenId>& out) const;

  /// nullptr for ids outside of the vocabulary.
  const TokenText* find(TokenId token) const {
    return token >= 0 && static_cast<std::size_t>(token) < texts.size()
               ? &texts[static_cast<std::size_t>(token)]
               : nullptr;
  }
  std::string_view bytes_of(const TokenText& text) const {
    return std::string_view(bytes).substr(text.offset, text.num_bytes);
  }
  /// Gives `stream` a token, unless it is skipped.
  void push(TokenId token, bool skip_special, text::DecodeStream& stream, std::string& out) const;
};

}  // namespace fastfd
