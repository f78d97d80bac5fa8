#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/regex.h"

namespace fastfd::text {

/// What a Split does with the matches of its pattern.
enum class SplitBehavior : std::uint8_t {
  kIsolated,
  kRemoved,
  kContiguous,
  kMergedWithPrevious,
  kMergedWithNext,
};

/// Words of a text and the buffers they are made with. `text` is what the spans refer to.
struct WordList {
  struct Part {
    Span span;
    bool is_match = false;
  };

  std::string_view text;
  bool starts_text = true;  ///< `text` is where the whole text begins: no token stands before it
  std::vector<Span> words;

  std::string rewritten;  ///< backs `text` once spaces were inserted or replaced
  std::string spare_text;
  std::vector<Span> spare_words;
  std::vector<Part> parts;
};

/// The `pre_tokenizer` of tokenizer.json: cuts text into the words that BPE sees. Immutable.
class PreTokenizer {
 public:
  /// One word, the whole text.
  PreTokenizer() = default;
  /// Throws TextError naming a type that is not supported, and when a step follows ByteLevel.
  explicit PreTokenizer(const JsonFields& json) { add(json); }

  /// Words are bytes for a byte-level vocabulary; else characters, as SentencePiece has them.
  bool is_byte_level() const { return is_byte_level_; }

  /// Fills list.words (none is empty) for list.text, which is valid UTF-8.
  void split(WordList& list, RegexScratch& scratch) const;

 private:
  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct Punctuation {
    SplitBehavior behavior;
  };
  struct WhiteSpace {};
  struct PrefixSpace {};
  /// Spaces become `replacement`, one is put before words that don't begin with it.
  struct Metaspace {
    enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };
    std::string replacement;
    Prepend prepend;
  };
  using Step = std::variant<Split, Digits, Punctuation, WhiteSpace, PrefixSpace, Metaspace>;

  void add(const JsonFields& json);
  void add_byte_level(const JsonFields& json);
  void add_metaspace(const JsonFields& json);
  static void replace_spaces(const Metaspace& step, WordList& list);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace fastfd::text
