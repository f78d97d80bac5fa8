#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/jinja/string_tools.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

using I = Interpreter;
using V = const Value&;
using A = const Args&;

void no_arguments(A args, std::string_view name) { const BoundArgs bound(args, name, {}); }

Value upper(I&, V input, A args) {
  no_arguments(args, "upper");
  return text::to_upper(to_string(input));
}

Value lower(I&, V input, A args) {
  no_arguments(args, "lower");
  return text::to_lower(to_string(input));
}

Value capitalize(I&, V input, A args) {
  no_arguments(args, "capitalize");
  return capitalized(to_string(input));
}

/// The title filter goes by separators, unlike str.title: "it's" keeps its s.
Value title(I&, V input, A args) {
  no_arguments(args, "title");
  const std::string text = to_string(input);
  std::string out;
  std::size_t pos = 0;
  while (pos < text.size()) {
    const auto is_separator = [&](std::size_t at) {
      const char32_t c = text::next_code_point(text, at);
      return text::is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    if (is_separator(pos)) {
      text::append_utf8(out, text::next_code_point(text, pos));
      continue;
    }
    const char32_t first = text::next_code_point(text, pos);
    text::append_upper(out, first);
    const std::size_t begin = pos;
    while (pos < text.size() && !is_separator(pos)) {
      text::next_code_point(text, pos);
    }
    out += text::to_lower(std::string_view(text).substr(begin, pos - begin));
  }
  return out;
}

Value trim(I&, V input, A args) {
  const BoundArgs bound(args, "trim", {"chars"});
  const bool has_chars = bound.has(0) && !bound.get(0, Value()).is_none();
  return strip(to_string(input), has_chars ? &bound.string(0) : nullptr, true, true);
}

Value replace(I& i, V input, A args) {
  const BoundArgs bound(args, "replace", {"old", "new", "count"});
  return replace_all(to_string(input), to_string(bound.required(0)), to_string(bound.required(1)),
                     bound.integer(2, -1), i);
}

Value default_filter(I&, V input, A args) {
  const BoundArgs bound(args, "default", {"default_value", "boolean"});
  if (input.is_undefined() || (bound.flag(1, false) && !is_true(input))) {
    return bound.get(0, Value(""));
  }
  return input;
}

Value length_filter(I&, V input, A args) {
  no_arguments(args, "length");
  return length(input);
}

Value string_filter(I&, V input, A args) {
  no_arguments(args, "string");
  return input.is_string() ? input : Value(to_string(input));
}

Value escape(I& i, V input, A args) {
  no_arguments(args, "escape");
  std::string out;
  for (const char c : to_string(input)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  i.charge(out.size());
  return out;
}

Value indent(I& i, V input, A args) {
  const BoundArgs bound(args, "indent", {"width", "first", "blank"});
  const Value width = bound.get(0, Value(std::int64_t{4}));
  const Value unit =
      width.is_string() ? width : binary(i, BinaryOp::kMul, Value(" "), Value(bound.integer(0, 4)));
  const std::string& padding = *unit.string();
  require_defined(input);
  if (!input.is_string()) {
    fail("indent needs a string");
  }
  const std::string text = *input.string() + "\n";  // Jinja's own way to keep a last empty line
  const auto lines = split_lines(text, /*keep_ends=*/false);
  i.charge(text.size() + lines.size() * padding.size());
  std::string out = bound.flag(1, false) ? padding : std::string();
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (n > 0) {
      out += '\n';
      out += lines[n].empty() && !bound.flag(2, false) ? std::string() : padding;
    }
    out += lines[n];
  }
  return out;
}

/// int() of a string: optional sign, digits with single underscores, white space around.
std::optional<std::int64_t> parse_integer(const std::string& text, int base) {
  std::string digits = strip(text, nullptr, true, true);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) {
    digits.erase(0, 1);
  }
  if (digits.empty() || digits.front() == '_' || digits.back() == '_' ||
      digits.find("__") != std::string::npos || digits.front() == '-') {
    return std::nullopt;
  }
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) {
    digits.erase(0, 2);
  }
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || last != end) {
    return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<double> parse_float(const std::string& text) {
  std::string digits = strip(text, nullptr, true, true);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  if (digits.starts_with('+')) {
    digits.erase(0, 1);
  }
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || last != end || digits.empty()) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> truncate(double value) {
  if (!(std::abs(value) < 9.2e18)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value);
}

Value int_filter(I&, V input, A args) {
  const BoundArgs bound(args, "int", {"default", "base"});
  require_defined(input);
  std::optional<std::int64_t> value = input.integer();
  if (const std::string* text = input.string()) {
    const std::int64_t base = bound.integer(1, 10);
    if (base < 2 || base > 36) {
      fail("int() base must be >= 2 and <= 36");
    }
    value = parse_integer(*text, static_cast<int>(base));
    if (!value) {
      if (const auto number = parse_float(*text)) {
        value = truncate(*number);
      }
    }
  } else if (!value && input.is_number()) {
    value = truncate(*input.number());
  }
  return value ? Value(*value) : bound.get(0, Value(std::int64_t{0}));
}

Value float_filter(I&, V input, A args) {
  const BoundArgs bound(args, "float", {"default"});
  require_defined(input);
  std::optional<double> value = input.number();
  if (const std::string* text = input.string()) {
    value = parse_float(*text);
  }
  return value ? Value(*value) : bound.get(0, Value(0.0));
}

Value abs_filter(I&, V input, A args) {
  no_arguments(args, "abs");
  require_defined(input);
  if (!input.is_number()) {
    fail(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
  }
  return negate(input, *input.number() < 0);
}

Value round_filter(I&, V input, A args) {
  const BoundArgs bound(args, "round", {"precision", "method"});
  require_defined(input);
  const std::int64_t digits = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.string(1) : "common";
  if (!input.is_number()) {
    fail(fmt::format("type {} doesn't define round", type_name(input)));
  }
  if (method == "common") {
    if (input.is_integer() && digits >= 0) {
      return *input.integer();
    }
    const double rounded = round_to(*input.number(), digits);
    return input.is_integer() ? Value(static_cast<std::int64_t>(rounded)) : Value(rounded);
  }
  if (method != "ceil" && method != "floor") {
    fail("method must be common, ceil or floor");
  }
  const double factor = std::pow(10.0, static_cast<double>(digits));
  const double scaled = *input.number() * factor;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / factor;
}

Value tojson(I& i, V input, A args) {
  const BoundArgs bound(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  const Value indent = bound.get(1, Value());
  if (indent.is_string()) {
    style.indent = *indent.string();
  } else if (!indent.is_none()) {
    const std::int64_t width = bound.integer(1, 0);
    style.indent =
        std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width, 0, 64)), ' ');
  }
  if (style.indent) {
    style.item_separator.assign(1, ',');
  }
  const Value separators = bound.get(2, Value());
  if (!separators.is_none()) {
    const ListPtr pair = iterate(separators);
    if (pair->items.size() != 2) {
      fail("separators must be a pair of strings");
    }
    style.item_separator = to_string(pair->items[0]);
    style.key_separator = to_string(pair->items[1]);
  }
  std::string json = to_json(input, style);
  i.charge(json.size());
  return json;
}

Value format_filter(I& i, V input, A args) {
  if (!args.keywords.empty()) {
    fail("format with keyword arguments is not supported; use positional ones");
  }
  std::string text =
      percent_format(to_string(input), make_list(args.positional, List::Kind::kTuple));
  i.charge(text.size());
  return text;
}

Value safe(I&, V input, A args) {
  no_arguments(args, "safe");
  return input.is_string() ? input : Value(to_string(input));
}

Value wordcount(I&, V input, A args) {
  no_arguments(args, "wordcount");
  const std::string text = to_string(input);
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const bool is_word = text::is_word(text::next_code_point(text, pos));
    count += static_cast<std::int64_t>(is_word && !in_word);
    in_word = is_word;
  }
  return count;
}

Value attr(I& i, V input, A args) {
  return i.attribute(input, BoundArgs(args, "attr", {"name"}).string(0));
}

const std::unordered_map<std::string_view, FilterFunction>& table() {
  static const auto* filters = new std::unordered_map<std::string_view, FilterFunction>{
      {"upper", upper},
      {"lower", lower},
      {"capitalize", capitalize},
      {"title", title},
      {"trim", trim},
      {"replace", replace},
      {"default", default_filter},
      {"d", default_filter},
      {"length", length_filter},
      {"count", length_filter},
      {"string", string_filter},
      {"escape", escape},
      {"e", escape},
      {"indent", indent},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", abs_filter},
      {"round", round_filter},
      {"tojson", tojson},
      {"format", format_filter},
      {"safe", safe},
      {"wordcount", wordcount},
      {"attr", attr},
  };
  return *filters;
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}

double round_to(double value, std::int64_t digits) {
  if (!std::isfinite(value) || digits > 300) {
    return value;
  }
  if (digits >= 0) {  // the correctly rounded decimal, read back
    double rounded = 0;
    const std::string text = fmt::format("{:.{}f}", value, digits);
    std::from_chars(text.data(), text.data() + text.size(), rounded);
    return rounded;
  }
  const double factor = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / factor) * factor;
}

}  // namespace fastfd::jinja
