#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fastfd::text {

/// Byte-level vocabularies write each byte as one printable character (GPT-2's table: "Ġ" is the
/// space). Bytes of a token so written; nullopt when a character is not in the table.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace fastfd::text
