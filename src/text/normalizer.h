#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/json_fields.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace fastfd::text {

/// Text to look for: a regular expression, or a string taken literally.
class Pattern {
 public:
  /// Member `key` of `fields`: `{"Regex": "..."}` or `{"String": "..."}`.
  static Pattern from_json(const JsonFields& fields, const char* key);
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  std::optional<Span> find(std::string_view text, std::size_t start, RegexScratch& scratch) const;

  /// Appends `text` with every match replaced by `content`.
  void replace_all(std::string_view text, std::string_view content, RegexScratch& scratch,
                   std::string& out) const;

  /// The text that is looked for; nullopt for a regular expression.
  std::optional<std::string_view> literal() const {
    return regex_ ? std::nullopt : std::optional<std::string_view>(literal_);
  }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

/// The `normalizer` of tokenizer.json. Immutable.
class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;
  /// Throws TextError naming a type that is not supported.
  explicit Normalizer(const JsonFields& json) { add(json); }

  /// Returns `text` itself when nothing changes, else a view of one of the buffers.
  std::string_view apply(std::string_view text, std::string& buffer, std::string& spare,
                         RegexScratch& scratch) const;

 private:
  struct Lowercase {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    bool left;
    bool right;
  };
  using Step = std::variant<NormalizationForm, Lowercase, Prepend, Replace, Strip>;

  void add(const JsonFields& json);

  std::vector<Step> steps_;
};

}  // namespace fastfd::text
