#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/unicode.h"

namespace fastfd::text {

/// Text to look for: a regular expression, or a string taken literally.
class Pattern {
 public:
  /// `{"Regex": "..."}` or `{"String": "..."}`
  static Pattern from_json(const nlohmann::json& json);
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  std::optional<Span> find(std::string_view text, std::size_t start, RegexScratch& scratch) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

/// The `normalizer` of tokenizer.json. Immutable.
class Normalizer {
 public:
  /// null: changes nothing. Throws TextError naming a type that is not supported.
  explicit Normalizer(const nlohmann::json& json);

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

  void add(const nlohmann::json& json);

  std::vector<Step> steps_;
};

}  // namespace fastfd::text
