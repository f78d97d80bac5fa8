#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace fastfd::text {
namespace {

constexpr std::size_t kTableSize = 0x100 + 68;

/// code point -> byte, or -1. Printable Latin-1 characters stand for themselves; the other 68
/// bytes are numbered upwards from U+0100.
constexpr std::array<std::int16_t, kTableSize> make_table() {
  std::array<std::int16_t, kTableSize> table{};
  table.fill(-1);
  std::size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    table[printable ? static_cast<std::size_t>(byte) : next++] = static_cast<std::int16_t>(byte);
  }
  return table;
}

constexpr std::array<std::int16_t, kTableSize> kByteOfCodePoint = make_table();

}  // namespace

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t pos = 0; pos < token.size();) {
    const char32_t c = next_code_point(token, pos);
    if (c >= kTableSize || kByteOfCodePoint[c] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kByteOfCodePoint[c]));
  }
  return bytes;
}

}  // namespace fastfd::text
