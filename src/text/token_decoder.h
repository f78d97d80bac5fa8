#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace fastfd::text {

/// The `decoder` of tokenizer.json: how the spellings of tokens become text. Immutable.
///
/// Decoders are chains of functions of the whole list of tokens. Chains that can be followed while
/// tokens arrive have this order, and others are refused by name:
///
///     Replace, Strip        of each token alone: done once for the vocabulary
///     Metaspace             marks become spaces, and nothing in the first token
///     ByteFallback          runs of tokens "<0xE2>" become characters; or
///     ByteLevel             tokens are bytes in GPT-2's spelling
///     Fuse                  from here on the text is one piece
///     Replace, Strip        of single characters anywhere, of characters at the ends of the text
class TokenDecoder {
 public:
  /// Throws TextError naming a type or an order that is not supported.
  explicit TokenDecoder(const JsonFields& json);

  /// A vocabulary entry as it stands inside of a text.
  struct TokenText {
    std::string bytes;
    bool is_byte = false;  ///< a byte of a fallback: `bytes` is that one
  };
  TokenText token_text(std::string_view content, RegexScratch& scratch) const;

  /// What an entry that is the first of its text gives instead; nullopt if it makes no difference.
  std::optional<std::string> first_text(std::string_view content, RegexScratch& scratch) const;

 private:
  friend class DecodeStream;
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    std::string character;
    std::size_t start = 0;  ///< at most so many go at the beginning
    std::size_t stop = 0;   ///< and at the end
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };
  using Step = std::variant<Replace, Strip>;
  enum class Phase : std::uint8_t { kTokens, kMetaspace, kBytes, kFused };

  void add(const JsonFields& json);
  void add_text_step(const JsonFields& json, const std::string& type);
  void enter(Phase phase, const JsonFields& json);
  std::string apply_token_steps(std::string_view content, RegexScratch& scratch) const;
  static std::string_view strip(const Strip& strip, std::string_view text);

  std::vector<Step> token_steps_;
  std::optional<Metaspace> metaspace_;
  bool byte_fallback_ = false;
  bool byte_level_ = false;
  std::vector<Step> text_steps_;
  Phase phase_ = Phase::kTokens;
};

/// Text of tokens as they arrive.
class DecodeStream {
 public:
  enum class Fallback : std::uint8_t {
    /// A run of fallback bytes is judged when it has ended, as the `tokenizers` library does: text
    /// if all of it is UTF-8, else one U+FFFD a byte.
    kByRun,
    /// A character leaves when it is complete; bytes that are none are one U+FFFD each.
    kByCharacter,
  };

  /// `decoder` must outlive the stream.
  DecodeStream(const TokenDecoder& decoder, Fallback fallback);

  /// Appends what `token` completes. `first` is decoder.first_text() of the token.
  void push(std::string_view bytes, bool is_byte, const std::string* first, std::string& out);

  /// Ends the text; the stream is as new.
  void flush(std::string& out);

  /// Bytes of a character that is not complete, or characters that may be stripped, are held.
  bool has_pending() const;

  /// What is held back goes, as if something unknown stood between.
  void forget_pending();

  /// Nothing that comes is treated as the beginning of the text any more.
  bool has_started() const;

 private:
  struct StripState {
    std::size_t left = 0;  ///< characters that may still go at the beginning
    std::size_t held = 0;  ///< characters that go if the text ends here
  };

  void push_fallback_byte(char byte, std::string& out);
  void end_run(std::string& out);
  void emit(std::string_view text, std::string& out) { emit_from(0, text, out); }
  void emit_from(std::size_t step, std::string_view text, std::string& out);
  void emit_stripped(std::size_t step, std::string_view text, std::string& out);
  void reset();

  const TokenDecoder* decoder_;
  Fallback fallback_;
  bool is_first_ = true;
  std::string run_;  ///< fallback bytes that are not text yet
  Utf8Stream utf8_;
  std::vector<StripState> strips_;  ///< one a text step; unused by those that replace
};

}  // namespace fastfd::text
