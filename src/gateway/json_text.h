#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fastfd::gateway {

/// Appends `text` quoted and escaped for JSON. Bytes from 0x80 on pass as they are: `text` is
/// UTF-8 or the result isn't JSON.
void append_json_string(std::string& out, std::string_view text);

/// As append_json_string; null for an empty text.
void append_json_string_or_null(std::string& out, std::string_view text);

/// The shortest decimal that reads back as the same float; JSON has no infinities, so these become
/// the largest finite values, and NaN null.
void append_json_float(std::string& out, float value);

/// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Characters (code points) in UTF-8 `text`.
std::size_t count_code_points(std::string_view text);

}  // namespace fastfd::gateway
