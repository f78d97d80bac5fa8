#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fastfd::text {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Rewrites a pattern from the syntax of tokenizer files (Oniguruma, Ruby dialect) to PCRE2's where
/// the two differ: `\s`, `\w`, `\h`, script names, interval quantifiers followed by `+`, classes in
/// classes and their intersection. Throws TextError for what has no end.
std::string translate_oniguruma(std::string_view pattern);

/// Per-thread memory of a match: result, limits and the JIT's stack. Not for concurrent use.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A compiled pattern over valid UTF-8. Immutable: find() may run in any number of threads, each
/// with a scratch of its own.
class Regex {
 public:
  /// Throws TextError with PCRE2's message and the place in the pattern.
  explicit Regex(std::string_view oniguruma_pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// First match that begins at or after byte `start`. Throws TextError when the pattern needs
  /// more backtracking or stack than the limits allow on this text.
  std::optional<Span> find(std::string_view text, std::size_t start, RegexScratch& scratch) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace fastfd::text
