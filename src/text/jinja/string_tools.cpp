#include "text/jinja/string_tools.h"

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

bool in_set(char32_t c, const std::string* chars) {
  if (chars == nullptr) {
    return text::is_python_space(c);
  }
  for (std::size_t pos = 0; pos < chars->size();) {
    if (text::next_code_point(*chars, pos) == c) {
      return true;
    }
  }
  return false;
}

std::size_t skip_left(std::string_view text, std::size_t pos, const std::string* chars) {
  while (pos < text.size()) {
    std::size_t next = pos;
    if (!in_set(text::next_code_point(text, next), chars)) {
      break;
    }
    pos = next;
  }
  return pos;
}

std::size_t skip_right(std::string_view text, std::size_t end, const std::string* chars) {
  while (end > 0) {
    const std::size_t begin = text::previous_boundary(text, end);
    std::size_t pos = begin;
    if (!in_set(text::next_code_point(text, pos), chars)) {
      break;
    }
    end = begin;
  }
  return end;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

std::string strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const std::size_t begin = left ? skip_left(text, 0, chars) : 0;
  text.remove_prefix(begin);
  return std::string(text.substr(0, right ? skip_right(text, text.size(), chars) : text.size()));
}

std::vector<std::string_view> split_space(std::string_view text, std::int64_t max_split,
                                          bool from_right) {
  std::vector<std::string_view> parts;
  const auto may_split = [&] {
    return max_split < 0 || static_cast<std::int64_t>(parts.size()) < max_split;
  };
  if (!from_right) {
    std::size_t pos = skip_left(text, 0, nullptr);
    while (pos < text.size()) {
      std::size_t end = pos;
      while (may_split() && end < text.size() && skip_left(text, end, nullptr) == end) {
        text::next_code_point(text, end);
      }
      if (!may_split()) {
        end = text.size();
      }
      parts.push_back(text.substr(pos, end - pos));
      pos = skip_left(text, end, nullptr);
    }
    return parts;
  }
  std::size_t end = skip_right(text, text.size(), nullptr);
  while (end > 0) {
    std::size_t begin = end;
    while (may_split() && begin > 0 && skip_right(text, begin, nullptr) == begin) {
      begin = text::previous_boundary(text, begin);
    }
    if (!may_split()) {
      begin = 0;
    }
    parts.push_back(text.substr(begin, end - begin));
    end = skip_right(text, begin, nullptr);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_split, bool from_right) {
  std::vector<std::string_view> parts;
  while (max_split < 0 || static_cast<std::int64_t>(parts.size()) < max_split) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) {
      break;
    }
    if (from_right) {
      parts.push_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    } else {
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator.size());
    }
  }
  parts.push_back(text);
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t at = pos;
    const char32_t c = text::next_code_point(text, pos);
    if (!is_line_end(c)) {
      continue;
    }
    if (c == '\r' && pos < text.size() && text[pos] == '\n') {
      ++pos;
    }
    lines.push_back(text.substr(begin, (keep_ends ? pos : at) - begin));
    begin = pos;
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
}

std::string replace_all(const std::string& text, const std::string& from, const std::string& to,
                        std::int64_t count, Interpreter& interpreter) {
  std::string out;
  std::size_t done = 0;
  std::size_t search = 0;
  for (; count != 0 && search <= text.size(); --count) {
    const std::size_t at = from.empty() ? search : text.find(from, search);
    if (at == std::string::npos) {
      break;
    }
    out.append(text, done, at - done);
    out += to;
    interpreter.charge(to.size());
    done = at + from.size();
    search = done;
    if (from.empty()) {  // Python puts `to` before each character and at the end
      if (search == text.size()) {
        break;
      }
      text::next_code_point(text, search);
    }
    interpreter.require_bytes(out.size());
  }
  out.append(text, done);
  interpreter.charge(out.size());
  return out;
}

std::string title_case(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const char32_t c = text::next_code_point(text, pos);
    in_word ? text::append_lower(out, c) : text::append_title(out, c);
    in_word = text::is_upper(c) || text::is_lower(c) || text::is_title(c);
  }
  return out;
}

std::string capitalized(std::string_view text) {
  std::string out;
  std::size_t pos = 0;
  if (!text.empty()) {
    text::append_title(out, text::next_code_point(text, pos));
  }
  return out + text::to_lower(text.substr(pos));
}

}  // namespace fastfd::jinja
