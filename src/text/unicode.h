#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fastfd::text {

/// Unicode property White_Space: what Rust's and Oniguruma's `\s` mean.
bool is_white_space(char32_t c);

/// What Python's str methods and `re` call white space: White_Space and U+001C..U+001F.
bool is_python_space(char32_t c);

bool is_letter(char32_t c);       ///< general category L*
bool is_number(char32_t c);       ///< general category N*
bool is_decimal(char32_t c);      ///< general category Nd
bool is_punctuation(char32_t c);  ///< general category P*, or an ASCII symbol
bool is_upper(char32_t c);        ///< Lu
bool is_lower(char32_t c);        ///< Ll
bool is_title(char32_t c);        ///< Lt
bool is_printable(char32_t c);    ///< as str.isprintable of Python
/// Letters, marks, decimal digits, connectors: `\w` of a Unicode regular expression.
bool is_word(char32_t c);

/// Python's str.lower, str.upper of whole strings (full case mapping with the final-sigma rule).
std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);
/// Titlecase mapping of one character, as str.title and str.capitalize use it.
void append_title(std::string& out, char32_t c);
/// Lowercase mapping of each character alone, without the final-sigma rule.
void append_lower(std::string& out, char32_t c);
void append_upper(std::string& out, char32_t c);

enum class NormalizationForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Normalises valid UTF-8. Returns `text` itself when it is known to be in the form already, else
/// a view of `buffer`, which must not be what `text` points into.
std::string_view normalize(std::string_view text, NormalizationForm form, std::string& buffer);

}  // namespace fastfd::text
