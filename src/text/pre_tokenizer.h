#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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
  std::vector<Span> words;

  std::string prefixed;  ///< backs `text` once spaces were inserted
  std::string spare_text;
  std::vector<Span> spare_words;
  std::vector<Part> parts;
};

/// The `pre_tokenizer` of tokenizer.json: cuts text into the words that BPE sees. Immutable.
class PreTokenizer {
 public:
  /// Throws TextError naming a type that is not supported, and when there is no ByteLevel (a step
  /// of the pre-tokenizer, the last one) : FastFD's vocabularies are byte-level.
  explicit PreTokenizer(const nlohmann::json& json);

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
  struct PrefixSpace {};
  using Step = std::variant<Split, Digits, Punctuation, PrefixSpace>;

  void add(const nlohmann::json& json);
  void add_byte_level(const nlohmann::json& json);

  std::vector<Step> steps_;
  bool has_byte_level_ = false;
};

}  // namespace fastfd::text
