#include "text/utf8.h"

#include <cstring>

namespace fastfd::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the sequence that a lead byte announces, and the range of its second byte.
struct Lead {
  std::uint32_t num_bytes;
  unsigned char second_min;
  unsigned char second_max;
};

Lead classify_lead(unsigned char byte) {
  if (byte < 0xC2) {
    return {0, 0, 0};
  }
  if (byte < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (byte < 0xF0) {
    return {3, static_cast<unsigned char>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<unsigned char>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<unsigned char>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) {
    return {Utf8Kind::kValid, 1, first};
  }
  const Lead lead = classify_lead(first);
  if (lead.num_bytes == 0) {
    return {Utf8Kind::kInvalid, 1, 0};
  }
  char32_t code_point = first & (0xFFU >> (lead.num_bytes + 1));
  for (std::uint32_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) {
      return {Utf8Kind::kIncomplete, i, 0};
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) {
      return {Utf8Kind::kInvalid, i, 0};
    }
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {Utf8Kind::kValid, lead.num_bytes, code_point};
}

char32_t next_code_point(std::string_view text, std::size_t& pos) {
  const Utf8Char c = decode_utf8(text.substr(pos));
  pos += c.num_bytes;
  return c.code_point;
}

std::size_t previous_boundary(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return end;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto c = static_cast<std::uint32_t>(code_point);
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0U | (c >> 6)));
    out.push_back(static_cast<char>(0x80U | (c & 0x3FU)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0U | (c >> 12)));
    out.push_back(static_cast<char>(0x80U | ((c >> 6) & 0x3FU)));
    out.push_back(static_cast<char>(0x80U | (c & 0x3FU)));
  } else {
    out.push_back(static_cast<char>(0xF0U | (c >> 18)));
    out.push_back(static_cast<char>(0x80U | ((c >> 12) & 0x3FU)));
    out.push_back(static_cast<char>(0x80U | ((c >> 6) & 0x3FU)));
    out.push_back(static_cast<char>(0x80U | (c & 0x3FU)));
  }
}

std::size_t ascii_prefix(std::string_view text) {
  std::size_t pos = 0;
  for (; pos + sizeof(std::uint64_t) <= text.size(); pos += sizeof(std::uint64_t)) {
    std::uint64_t chunk = 0;
    std::memcpy(&chunk, text.data() + pos, sizeof(chunk));
    if ((chunk & 0x8080808080808080ULL) != 0) {
      break;
    }
  }
  while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0x80) {
    ++pos;
  }
  return pos;
}

bool is_valid_utf8(std::string_view text) {
  for (;;) {
    text.remove_prefix(ascii_prefix(text));
    while (!text.empty() && static_cast<unsigned char>(text[0]) >= 0x80) {
      const Utf8Char c = decode_utf8(text);
      if (c.kind != Utf8Kind::kValid) {
        return false;
      }
      text.remove_prefix(c.num_bytes);
    }
    if (text.empty()) {
      return true;
    }
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Stream stream;
  stream.push(bytes, out);
  stream.flush(out);
  return out;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  // Finish the pending character byte by byte: it needs at most three, and an invalid
  // continuation starts a character of its own.
  while (!pending_.empty() && !bytes.empty()) {
    pending_.push_back(bytes.front());
    bytes.remove_prefix(1);
    const Utf8Char c = decode_utf8(pending_);
    if (c.kind == Utf8Kind::kValid) {
      out += pending_;
      pending_.clear();
    } else if (c.kind == Utf8Kind::kInvalid) {
      out += kReplacement;
      const char last = pending_.back();
      pending_.clear();
      push(std::string_view(&last, 1), out);
    }
  }
  while (!bytes.empty()) {
    const std::size_t num_ascii = ascii_prefix(bytes);
    out += bytes.substr(0, num_ascii);
    bytes.remove_prefix(num_ascii);
    if (bytes.empty()) {
      return;
    }
    const Utf8Char c = decode_utf8(bytes);
    if (c.kind == Utf8Kind::kIncomplete) {
      pending_ = bytes;
      return;
    }
    out += c.kind == Utf8Kind::kValid ? bytes.substr(0, c.num_bytes) : kReplacement;
    bytes.remove_prefix(c.num_bytes);
  }
}

void Utf8Stream::flush(std::string& out) {
  if (!pending_.empty()) {
    out += kReplacement;
    pending_.clear();
  }
}

}  // namespace fastfd::text
