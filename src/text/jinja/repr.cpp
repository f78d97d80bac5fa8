#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/loop.h"
#include "text/jinja/value.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

void append_repr(std::string& out, const Value& value, std::uint32_t depth);

/// Python's quotes: single, unless the text has single quotes and no double ones.
void append_string_repr(std::string& out, const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t begin = pos;
    const auto c = static_cast<std::uint32_t>(text::next_code_point(text, pos));
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (text::is_printable(c)) {
      out.append(text, begin, pos - begin);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += fmt::format("\\U{:08x}", c);
    }
  }
  out += quote;
}

void append_items(std::string& out, const std::vector<Value>& items, std::uint32_t depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    out += i == 0 ? "" : ", ";
    append_repr(out, items[i], depth + 1);
  }
}

void append_list_repr(std::string& out, const List& list, std::uint32_t depth) {
  switch (list.kind) {
    case List::Kind::kTuple:
      out += '(';
      append_items(out, list.items, depth);
      out += list.items.size() == 1 ? ",)" : ")";
      return;
    case List::Kind::kGenerator:
      fail("a generator cannot be printed; add |list or |join to it");
    case List::Kind::kList:
      out += '[';
      append_items(out, list.items, depth);
      out += ']';
      return;
    case List::Kind::kDictKeys:
      out += "dict_keys([";
      break;
    case List::Kind::kDictValues:
      out += "dict_values([";
      break;
    case List::Kind::kDictItems:
      out += "dict_items([";
      break;
  }
  append_items(out, list.items, depth);
  out += "])";
}

void append_dict_repr(std::string& out, const Dict& dict, std::uint32_t depth) {
  out += '{';
  const char* separator = "";
  for (const auto& [key, value] : dict.items) {
    out += separator;
    separator = ", ";
    append_repr(out, key, depth + 1);
    out += ": ";
    append_repr(out, value, depth + 1);
  }
  out += '}';
}

void append_repr(std::string& out, const Value& value, std::uint32_t depth) {
  if (depth > kMaxValueDepth) {
    fail_limit("a namespace that contains itself cannot be printed");
  }
  if (const std::string* text = value.string()) {
    append_string_repr(out, *text);
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (const auto* b = value.get_if<bool>()) {
    out += *b ? "True" : "False";
  } else if (const auto* i = value.get_if<std::int64_t>()) {
    out += fmt::format("{}", *i);
  } else if (const auto* d = value.get_if<double>()) {
    out += float_repr(*d);
  } else if (const List* list = value.list()) {
    append_list_repr(out, *list, depth);
  } else if (const Dict* dict = value.dict()) {
    append_dict_repr(out, *dict, depth);
  } else if (const auto* ns = value.get_if<NamespacePtr>()) {
    std::vector<std::pair<Value, Value>> items((*ns)->attributes.begin(), (*ns)->attributes.end());
    out += "<Namespace ";
    append_dict_repr(out, *make_dict(std::move(items)).dict(), depth);
    out += '>';
  } else if (const auto* loop = value.get_if<LoopPtr>()) {
    out += fmt::format("<LoopContext {}/{}>", (*loop)->index(), (*loop)->length());
  } else if (const auto* function = value.get_if<FunctionPtr>()) {
    out +=
        fmt::format("<{} '{}'>", (*function)->is_macro ? "Macro" : "function", (*function)->name);
  }
}

}  // namespace

/// The shortest digits that read back as the same double, in Python's layout.
std::string float_repr(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  std::string out;
  if (text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) {
    digits += text.substr(2, e - 2);
  }
  int exponent = 0;
  const char* exponent_begin = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) {
      out += '.';
      out += digits.substr(1);
    }
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  }
  const int num_whole = exponent + 1;
  if (num_digits <= num_whole) {
    return out + digits + std::string(static_cast<std::size_t>(num_whole - num_digits), '0') + ".0";
  }
  return out + digits.substr(0, static_cast<std::size_t>(num_whole)) + "." +
         digits.substr(static_cast<std::size_t>(num_whole));
}

void append_string(std::string& out, const Value& value) {
  if (const std::string* text = value.string()) {
    out += *text;
  } else if (!value.is_undefined()) {
    append_repr(out, value, 0);
  }
}

std::string to_string(const Value& value) {
  std::string out;
  append_string(out, value);
  return out;
}

std::string repr(const Value& value) {
  std::string out;
  append_repr(out, value, 0);
  return out;
}

}  // namespace fastfd::jinja
