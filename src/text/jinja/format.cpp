#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

constexpr int kMaxWidth = 10'000;  // wider fields are no text for a model

/// A conversion of either formatting language.
struct Spec {
  char32_t fill = U' ';
  char align = '\0';  ///< '<', '>', '^', '=' or none
  char sign = '\0';   ///< '+', ' ' or none
  bool alternate = false;
  bool group = false;  ///< thousands separators
  int width = 0;
  int precision = -1;
  char type = '\0';
};

std::string pad(const std::string& text, const Spec& spec, char default_align) {
  const auto size = static_cast<int>(length(Value(text)));
  if (size >= spec.width) {
    return text;
  }
  const auto missing = static_cast<std::size_t>(spec.width - size);
  const auto fill = [&](std::size_t n) {
    std::string result;
    for (; n > 0; --n) {
      text::append_utf8(result, spec.fill);
    }
    return result;
  };
  switch (spec.align == '\0' ? default_align : spec.align) {
    case '<':
      return text + fill(missing);
    case '^':
      return fill(missing / 2) + text + fill(missing - missing / 2);
    case '=': {
      const std::size_t num_sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
      return text.substr(0, num_sign) + fill(missing) + text.substr(num_sign);
    }
    default:
      return fill(missing) + text;
  }
}

std::string with_sign(bool negative, const Spec& spec, const std::string& digits) {
  if (negative) {
    return "-" + digits;
  }
  return spec.sign == '\0' ? digits : std::string(1, spec.sign) + digits;
}

std::string grouped(const std::string& digits) {
  const std::size_t num_whole = std::min(digits.find_first_of(".e"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < num_whole; ++i) {
    if (i > 0 && (num_whole - i) % 3 == 0) {
      out += ',';
    }
    out += digits[i];
  }
  return out + digits.substr(num_whole);
}

std::string format_integer(std::int64_t value, const Spec& spec) {
  const auto magnitude =
      value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
  std::string digits;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{}{:x}", spec.alternate ? "0x" : "", magnitude);
      break;
    case 'X':
      digits = fmt::format("{}{:X}", spec.alternate ? "0X" : "", magnitude);
      break;
    case 'o':
      digits = fmt::format("{}{:o}", spec.alternate ? "0o" : "", magnitude);
      break;
    case 'b':
      digits = fmt::format("{}{:b}", spec.alternate ? "0b" : "", magnitude);
      break;
    default:
      digits = fmt::format("{}", magnitude);
  }
  if (spec.group) {
    digits = grouped(digits);
  }
  return pad(with_sign(value < 0, spec, digits), spec, '>');
}

std::string format_float(double value, const Spec& spec) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const double magnitude = std::abs(value);
  std::string digits;
  switch (spec.type) {
    case 'e':
      digits = fmt::format("{:.{}e}", magnitude, precision);
      break;
    case 'E':
      digits = fmt::format("{:.{}E}", magnitude, precision);
      break;
    case 'g':
      digits = fmt::format("{:.{}g}", magnitude, precision);
      break;
    case 'G':
      digits = fmt::format("{:.{}G}", magnitude, precision);
      break;
    case '%':
      digits = fmt::format("{:.{}f}%", magnitude * 100, precision);
      break;
    case '\0':
      digits =
          spec.precision < 0 ? float_repr(magnitude) : fmt::format("{:.{}g}", magnitude, precision);
      break;
    default:
      digits = fmt::format("{:.{}f}", magnitude, precision);
  }
  if (spec.group) {
    digits = grouped(digits);
  }
  return pad(with_sign(std::signbit(value), spec, digits), spec, '>');
}

std::string cut(const std::string& text, int precision) {
  if (precision < 0) {
    return text;
  }
  std::size_t end = 0;
  for (; precision > 0 && end < text.size(); --precision) {
    text::next_code_point(text, end);
  }
  return text.substr(0, end);
}

/// Digits at `pos`; advances behind them.
int parse_width(const std::string& text, std::size_t& pos) {
  int value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = value * 10 + (text[pos++] - '0');
    if (value > kMaxWidth) {
      fail_limit(fmt::format("a format width is larger than {}", kMaxWidth));
    }
  }
  return value;
}

/// One `%` conversion; the flags, width and precision are read from `format`.
class PercentFormatter {
 public:
  PercentFormatter(const std::string& format, const Value& args) : format_(format), args_(args) {
    const List* list = args.list();
    tuple_ = list != nullptr && list->kind == List::Kind::kTuple ? list : nullptr;
  }

  std::string run() {
    std::string out;
    while (pos_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', pos_), format_.size());
      out.append(format_, pos_, percent - pos_);
      pos_ = percent + 1;
      if (percent < format_.size()) {
        out += conversion();
      }
    }
    const bool all_used =
        tuple_ != nullptr ? next_ == tuple_->items.size() : next_ == 1 || args_.dict() != nullptr;
    if (!all_used) {
      fail("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  char peek() const { return pos_ < format_.size() ? format_[pos_] : '\0'; }

  std::string conversion() {
    std::optional<Value> named;
    if (peek() == '(') {
      const std::size_t close = format_.find(')', pos_);
      if (close == std::string::npos || args_.dict() == nullptr) {
        fail("format requires a mapping");
      }
      const std::string key = format_.substr(pos_ + 1, close - pos_ - 1);
      const Value* value = args_.dict()->find(std::string_view(key));
      if (value == nullptr) {
        fail(fmt::format("key '{}' is missing for the format", key));
      }
      named = *value;
      pos_ = close + 1;
    }
    Spec spec;
    for (; std::string_view("-+ 0#").find(peek()) != std::string_view::npos && peek() != '\0';
         ++pos_) {
      flag(spec, peek());
    }
    spec.width = parse_width(format_, pos_);
    if (peek() == '.') {
      ++pos_;
      spec.precision = parse_width(format_, pos_);
    }
    spec.type = peek();
    ++pos_;
    if (spec.type == '%') {
      return "%";
    }
    return convert(spec, named ? *named : next_argument());
  }

  static void flag(Spec& spec, char c) {
    if (c == '-') {
      spec.align = '<';
    } else if (c == '0' && spec.align == '\0') {
      spec.align = '=';
      spec.fill = U'0';
    } else if (c == '#') {
      spec.alternate = true;
    } else if (c == '+' || (c == ' ' && spec.sign == '\0')) {
      spec.sign = c;
    }
  }

  const Value& next_argument() {
    const std::size_t index = next_++;
    if (tuple_ != nullptr ? index >= tuple_->items.size() : index > 0) {
      fail("not enough arguments for format string");
    }
    return tuple_ != nullptr ? tuple_->items[index] : args_;
  }

  static std::string convert(Spec spec, const Value& value) {
    switch (spec.type) {
      case 's':
      case 'r':
        if (spec.align == '=') {
          spec.align = '>';
          spec.fill = U' ';
        }
        return pad(cut(spec.type == 's' ? to_string(value) : repr(value), spec.precision), spec,
                   '>');
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        require_number(value, spec.type);
        return format_integer(
            value.integer() ? *value.integer() : static_cast<std::int64_t>(*value.number()), spec);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
        require_number(value, spec.type);
        return format_float(*value.number(), spec);
      default:
        fail(fmt::format("unsupported format character '{}'", spec.type));
    }
  }

  static void require_number(const Value& value, char type) {
    require_defined(value);
    if (!value.is_number() || std::abs(*value.number()) > 9.2e18) {
      fail(fmt::format("%{} format: a number is required, not {}", type, type_name(value)));
    }
  }

  const std::string& format_;
  const Value& args_;
  const List* tuple_ = nullptr;
  std::size_t pos_ = 0;
  std::size_t next_ = 0;
};

/// str.format: `{}`, `{0}`, `{name.attr[key]!r:spec}`.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const std::string& format, const Args& args)
      : interpreter_(interpreter), format_(format), args_(args) {}

  std::string run() {
    std::string out;
    for (std::size_t pos = 0; pos < format_.size(); ++pos) {
      const char c = format_[pos];
      if (c != '{' && c != '}') {
        out += c;
      } else if (pos + 1 < format_.size() && format_[pos + 1] == c) {
        out += c;
        ++pos;
      } else if (c == '}') {
        fail("single '}' encountered in format string");
      } else {
        const std::size_t close = format_.find('}', pos);
        if (close == std::string::npos) {
          fail("expected '}' before end of string");
        }
        out += field(format_.substr(pos + 1, close - pos - 1));
        interpreter_.require_bytes(out.size());
        pos = close;
      }
    }
    interpreter_.charge(out.size());
    return out;
  }

 private:
  std::string field(const std::string& text) {
    if (text.find('{') != std::string::npos) {
      fail("format fields inside of format fields are not supported");
    }
    const std::size_t colon = std::min(text.find(':'), text.size());
    std::string name = text.substr(0, colon);
    const Spec spec = parse_spec(colon < text.size() ? text.substr(colon + 1) : std::string());
    bool as_repr = false;
    if (const std::size_t mark = name.find('!'); mark != std::string::npos) {
      as_repr = name.substr(mark + 1) == "r";
      name.resize(mark);
    }
    const Value value = lookup(name);
    if (as_repr) {
      return pad(cut(repr(value), spec.precision), spec, '<');
    }
    if (value.is_number() && value.get_if<bool>() == nullptr && spec.type != 's') {
      const bool as_float = value.get_if<double>() != nullptr ||
                            std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos;
      return as_float && (spec.type != '\0' || value.get_if<double>() != nullptr)
                 ? format_float(*value.number(), spec)
                 : format_integer(*value.integer(), spec);
    }
    return pad(cut(to_string(value), spec.precision), spec, '<');
  }

  Value lookup(const std::string& name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = base(name.substr(0, end));
    for (std::size_t pos = end; pos < name.size();) {
      if (name[pos] == '.') {
        const std::size_t next = std::min(name.find_first_of(".[", pos + 1), name.size());
        value = interpreter_.attribute(value, name.substr(pos + 1, next - pos - 1));
        pos = next;
      } else {
        const std::size_t close = name.find(']', pos);
        if (name[pos] != '[' || close == std::string::npos) {
          fail("bad field name in format string");
        }
        value = interpreter_.item(value, key_of(name.substr(pos + 1, close - pos - 1)));
        pos = close + 1;
      }
    }
    return value;
  }

  static Value key_of(const std::string& text) {
    std::int64_t index = 0;
    const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    return error == std::errc() && last == text.data() + text.size() ? Value(index) : Value(text);
  }

  Value base(const std::string& name) {
    const Value key = name.empty() ? Value(static_cast<std::int64_t>(next_++)) : key_of(name);
    if (const auto index = key.integer()) {
      if (*index < 0 || static_cast<std::size_t>(*index) >= args_.positional.size()) {
        fail(fmt::format("replacement index {} out of range for positional args", *index));
      }
      return args_.positional[static_cast<std::size_t>(*index)];
    }
    for (const auto& [keyword, value] : args_.keywords) {
      if (keyword == name) {
        return value;
      }
    }
    fail(fmt::format("format has no argument named '{}'", name));
  }

  static Spec parse_spec(const std::string& text) {
    Spec spec;
    std::size_t pos = 0;
    const auto is_align = [&](std::size_t at) {
      return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
    };
    std::size_t after_fill = 0;
    const char32_t fill = text.empty() ? U' ' : text::next_code_point(text, after_fill);
    if (is_align(after_fill) && after_fill > 0) {
      spec.fill = fill;
      spec.align = text[after_fill];
      pos = after_fill + 1;
    } else if (is_align(0)) {
      spec.align = text[0];
      pos = 1;
    }
    const auto take = [&](char c) { return pos < text.size() && text[pos] == c && ++pos != 0; };
    if (take('+')) {
      spec.sign = '+';
    } else if (take(' ')) {
      spec.sign = ' ';
    } else {
      take('-');
    }
    spec.alternate = take('#');
    if (take('0') && spec.align == '\0') {
      spec.fill = U'0';
      spec.align = '=';
    }
    spec.width = parse_width(text, pos);
    spec.group = take(',');
    if (take('.')) {
      spec.precision = parse_width(text, pos);
    }
    if (pos < text.size()) {
      spec.type = text[pos++];
    }
    if (pos != text.size() ||
        std::string_view(std::string_view("\0sdxXobfFeEgG%", 14)).find(spec.type) ==
            std::string_view::npos) {
      fail(fmt::format("format specification '{}' is not supported", text));
    }
    return spec;
  }

  Interpreter& interpreter_;
  const std::string& format_;
  const Args& args_;
  std::size_t next_ = 0;
};

}  // namespace

std::string percent_format(const std::string& format, const Value& args) {
  return PercentFormatter(format, args).run();
}

std::string brace_format(Interpreter& interpreter, const std::string& format, const Args& args) {
  return BraceFormatter(interpreter, format, args).run();
}

}  // namespace fastfd::jinja
