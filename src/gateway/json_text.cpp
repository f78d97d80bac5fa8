#include "gateway/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace fastfd::gateway {
namespace {

bool needs_escape(unsigned char c) { return c < 0x20 || c == '"' || c == '\\'; }

void append_escaped(std::string& out, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t clean_from = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (needs_escape(c)) {
      out.append(text, clean_from, i - clean_from);
      append_escaped(out, c);
      clean_from = i + 1;
    }
  }
  out.append(text, clean_from, text.size() - clean_from);
  out += '"';
}

void append_json_string_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

void append_json_float(std::string& out, float value) {
  if (std::isnan(value)) {
    out += "null";
    return;
  }
  constexpr float kMax = std::numeric_limits<float>::max();
  std::array<char, 32> digits{};
  const auto result =
      std::to_chars(digits.data(), digits.data() + digits.size(), std::clamp(value, -kMax, kMax));
  out.append(digits.data(), result.ptr);
}

bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    // Second byte's range by lead byte: Unicode 15, table 3-7.
    std::size_t length = 0;
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      low = lead == 0xE0 ? 0xA0 : low;
      high = lead == 0xED ? 0x9F : high;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      low = lead == 0xF0 ? 0x90 : low;
      high = lead == 0xF4 ? 0x8F : high;
    }
    if (length == 0 || i + length > text.size()) {
      return false;
    }
    for (std::size_t j = 1; j < length; ++j) {
      const auto byte = static_cast<unsigned char>(text[i + j]);
      if (byte < low || byte > high) {
        return false;
      }
      low = 0x80;
      high = 0xBF;
    }
    i += length;
  }
  return true;
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace fastfd::gateway
