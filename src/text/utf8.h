#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastfd::text {

enum class Utf8Kind : std::uint8_t {
  kValid,       ///< a complete character
  kInvalid,     ///< `num_bytes` bytes that no continuation can make valid
  kIncomplete,  ///< the text ends inside a character that is valid so far
};

struct Utf8Char {
  Utf8Kind kind = Utf8Kind::kValid;
  std::uint32_t num_bytes = 0;
  char32_t code_point = 0;
};

/// The character at the start of `text`, which must not be empty. Ill-formed text is cut into the
/// "maximal subparts" of the Unicode standard (chapter 3.9), as Python and Rust do.
Utf8Char decode_utf8(std::string_view text);

/// decode_utf8 for text that is known to be valid; returns the code point and advances `pos`.
char32_t next_code_point(std::string_view text, std::size_t& pos);

/// Start of the character that ends at `end` (> 0) in valid text.
std::size_t previous_boundary(std::string_view text, std::size_t end);

void append_utf8(std::string& out, char32_t code_point);

/// Bytes at the start of `text` that are ASCII.
std::size_t ascii_prefix(std::string_view text);

bool is_valid_utf8(std::string_view text);

/// What `bytes.decode("utf-8", errors="replace")` gives in Python: each maximal invalid subpart
/// becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

/// The same, for bytes that arrive in pieces: characters leave when they are complete.
class Utf8Stream {
 public:
  /// Appends to `out` every character (or U+FFFD) that `bytes` completes.
  void push(std::string_view bytes, std::string& out);

  /// Ends the text: a character that is still incomplete becomes U+FFFD.
  void flush(std::string& out);

  bool has_pending() const { return !pending_.empty(); }

 private:
  std::string pending_;  ///< at most 3 bytes, the beginning of a character
};

}  // namespace fastfd::text
