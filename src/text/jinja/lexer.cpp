#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "fastfd/text/chat_template.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

/// Every line end becomes \n, and one at the very end is dropped (keep_trailing_newline off).
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      i += static_cast<std::size_t>(i + 1 < source.size() && source[i + 1] == '\n');
    }
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

std::size_t rstrip_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = text::previous_boundary(text, end);
    std::size_t pos = begin;
    if (!text::is_python_space(text::next_code_point(text, pos))) {
      break;
    }
    end = begin;
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source)
      : owned_(normalize_newlines(text::is_valid_utf8(source)
                                      ? std::string(source)
                                      : text::replace_invalid_utf8(source))),
        source_(owned_) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      root();
    }
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw ChatTemplateError(ChatTemplateError::Kind::kSyntax, line_, message);
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  bool at(std::string_view text) const { return source_.substr(pos_).starts_with(text); }
  char peek(std::size_t offset = 0) const {
    return pos_ + offset < source_.size() ? source_[pos_ + offset] : '\0';
  }

  void skip(std::size_t n) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                    source_.begin() + static_cast<std::ptrdiff_t>(pos_ + n), '\n'));
    pos_ += n;
  }

  void skip_space() {
    std::size_t end = pos_;
    while (end < source_.size()) {
      std::size_t next = end;
      if (!text::is_python_space(text::next_code_point(source_, next))) {
        break;
      }
      end = next;
    }
    skip(end - pos_);
  }

  /// Start of the next tag at or after `from`: "{{", "{%" or "{#".
  std::size_t find_tag(std::size_t from) const {
    for (std::size_t at = source_.find('{', from); at != std::string_view::npos;
         at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') {
        return at;
      }
    }
    return std::string_view::npos;
  }

  /// Whether pos_ is where a line of the template begins, seen from the last token's end.
  bool at_line_start(std::size_t pos) const { return pos == 0 || source_[pos - 1] == '\n'; }

  /// Text before a tag with the tag's whitespace control applied.
  std::string_view strip_before(std::string_view text, std::size_t text_begin, char sign,
                                bool is_variable) const {
    if (sign == '-') {
      return text.substr(0, rstrip_end(text));
    }
    if (sign == '+' || is_variable) {
      return text;
    }
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    const bool starts_line = line_begin > 0 || at_line_start(text_begin);
    if (starts_line && rstrip_end(text.substr(line_begin)) == 0) {
      return text.substr(0, line_begin);
    }
    return text;
  }

  void root() {
    const std::size_t begin = pos_;
    const std::size_t tag = find_tag(pos_);
    if (tag == std::string_view::npos) {
      add_data(source_.substr(begin));
      skip(source_.size() - begin);
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    add_data(strip_before(source_.substr(begin, tag - begin), begin, sign, kind == '{'));
    skip(tag - begin + 2 + (has_sign ? 1 : 0));
    if (kind == '#') {
      comment();
    } else if (kind == '%' && raw_begin()) {
      raw();
    } else if (kind == '%') {
      add(TokenKind::kBlockBegin, {});
      expression(/*is_block=*/true);
    } else {
      add(TokenKind::kVariableBegin, {});
      expression(/*is_block=*/false);
    }
  }

  void add_data(std::string_view text) {
    if (!text.empty()) {
      add(TokenKind::kData, std::string(text));
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", pos_);
    if (end == std::string_view::npos) {
      fail("missing end of comment tag");
    }
    const char sign = end > pos_ ? source_[end - 1] : '\0';
    skip(end + 2 - pos_);
    after_tag(sign);
  }

  /// Behind a block or comment: `-` eats all white space, else the first newline goes (trim_blocks)
  /// unless there is a `+`.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && peek() == '\n') {
      skip(1);
    }
  }

  /// Consumes `raw %}` and returns true if that is what follows the block's begin.
  bool raw_begin() {
    const std::size_t saved_pos = pos_;
    const int saved_line = line_;
    skip_space();
    if (at("raw")) {
      skip(3);
      skip_space();
      const bool strip = at("-%}");
      if (strip || at("%}")) {
        skip(strip ? 3 : 2);
        if (strip) {
          skip_space();
        }
        return true;
      }
    }
    pos_ = saved_pos;
    line_ = saved_line;
    return false;
  }

  void raw() {
    const std::size_t begin = pos_;
    for (std::size_t tag = source_.find("{%", pos_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      const std::string_view data = source_.substr(begin, tag - begin);
      skip(tag + 2 - pos_);
      const char open_sign = peek();
      if (open_sign == '-' || open_sign == '+') {
        skip(1);
      }
      skip_space();
      if (!at("endraw")) {
        continue;
      }
      skip(6);
      skip_space();
      const char close_sign = peek() == '-' || peek() == '+' ? peek() : '\0';
      if (!source_.substr(pos_ + (close_sign == '\0' ? 0 : 1)).starts_with("%}")) {
        continue;
      }
      add_data(strip_before(data, begin, open_sign, /*is_variable=*/false));
      skip(close_sign == '\0' ? 2 : 3);
      after_tag(close_sign);
      return;
    }
    fail("missing end of raw directive");
  }

  /// Consumes the end of the tag if it is here.
  bool tag_end(bool is_block) {
    const char sign = peek();
    const bool signed_end = sign == '-' || (sign == '+' && is_block);
    const std::string_view end = is_block ? "%}" : "}}";
    if (!source_.substr(std::min(source_.size(), pos_ + (signed_end ? 1 : 0))).starts_with(end)) {
      return false;
    }
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, {});
    skip(signed_end ? 3 : 2);
    if (sign == '-') {
      skip_space();
    } else if (is_block) {
      after_tag(sign);
    }
    return true;
  }

  void expression(bool is_block) {
    const int begin_line = line_;
    std::string open;  // brackets that are not closed yet
    for (;;) {
      skip_space();
      if (pos_ >= source_.size()) {
        line_ = begin_line;
        fail(is_block ? "block tag is not closed by %}" : "expression is not closed by }}");
      }
      if (open.empty() && tag_end(is_block)) {
        return;
      }
      const char c = peek();
      if (is_name_start(c)) {
        name();
      } else if (is_digit(c)) {
        number();
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        operator_token(open);
      }
    }
  }

  void name() {
    std::size_t end = pos_;
    while (end < source_.size() && is_name_part(source_[end])) {
      ++end;
    }
    add(TokenKind::kName, std::string(source_.substr(pos_, end - pos_)));
    skip(end - pos_);
  }

  /// Digits with single underscores between them, from `pos`; returns their end.
  std::size_t digits_end(std::size_t pos) const {
    while (pos < source_.size() &&
           (is_digit(source_[pos]) ||
            (source_[pos] == '_' && pos + 1 < source_.size() && is_digit(source_[pos + 1])))) {
      ++pos;
    }
    return pos;
  }

  void number() {
    if (peek() == '0' && std::string_view("xXoObB").find(peek(1)) != std::string_view::npos &&
        peek(1) != '\0') {
      radix_number();
      return;
    }
    std::size_t end = digits_end(pos_);
    bool is_float = false;
    const bool is_index = pos_ > 0 && source_[pos_ - 1] == '.';  // the 0 and 1 of `x.0.1`
    if (!is_index && end + 1 < source_.size() && source_[end] == '.' &&
        is_digit(source_[end + 1])) {
      is_float = true;
      end = digits_end(end + 1);
    }
    if (!is_index && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_float = true;
        end = digits_end(exponent);
      }
    }
    std::string digits(source_.substr(pos_, end - pos_));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    skip(end - pos_);
  }

  void radix_number() {
    const char marker = static_cast<char>(peek(1) | 0x20);
    const int radix = marker == 'x' ? 16 : (marker == 'o' ? 8 : 2);
    std::size_t end = pos_ + 2;
    while (end < source_.size() && is_name_part(source_[end])) {
      ++end;
    }
    std::string digits(source_.substr(pos_ + 2, end - pos_ - 2));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    std::int64_t value = 0;
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, radix);
    if (error != std::errc() || last != digits.data() + digits.size()) {
      fail(fmt::format("bad number '{}'", source_.substr(pos_, end - pos_)));
    }
    add(TokenKind::kInteger, std::to_string(value));
    skip(end - pos_);
  }

  void string(char quote) {
    std::string value;
    std::size_t pos = pos_ + 1;
    while (pos < source_.size() && source_[pos] != quote) {
      if (source_[pos] == '\\' && pos + 1 < source_.size()) {
        pos = escape(pos + 1, value);
      } else {
        value += source_[pos++];
      }
    }
    if (pos >= source_.size()) {
      fail("string without end");
    }
    add(TokenKind::kString, std::move(value));
    skip(pos + 1 - pos_);
  }

  /// Python's escapes; unknown ones keep their backslash. `pos` is behind the backslash.
  std::size_t escape(std::size_t pos, std::string& out) const {
    static constexpr std::string_view kFrom = "ntrabfv\\'\"";
    static constexpr std::string_view kTo = "\n\t\r\a\b\f\v\\'\"";
    const char c = source_[pos];
    if (const std::size_t i = kFrom.find(c); i != std::string_view::npos) {
      out += kTo[i];
      return pos + 1;
    }
    if (c == '\n') {
      return pos + 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      return hex_escape(pos, c == 'x' ? 2 : (c == 'u' ? 4 : 8), out);
    }
    if (c >= '0' && c <= '7') {
      std::uint32_t value = 0;
      std::size_t end = pos;
      for (; end < pos + 3 && end < source_.size() && source_[end] >= '0' && source_[end] <= '7';
           ++end) {
        value = value * 8 + static_cast<std::uint32_t>(source_[end] - '0');
      }
      text::append_utf8(out, value);
      return end;
    }
    out += '\\';
    out += c;
    return pos + 1;
  }

  std::size_t hex_escape(std::size_t pos, std::size_t num_digits, std::string& out) const {
    const std::string_view digits = source_.substr(pos + 1, num_digits);
    std::uint32_t value = 0;
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != num_digits || error != std::errc() ||
        last != digits.data() + digits.size() || value > 0x10FFFF ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      fail(fmt::format("bad escape \\{}{} in a string", source_[pos], digits));
    }
    text::append_utf8(out, value);
    return pos + 1 + num_digits;
  }

  void operator_token(std::string& open) {
    static constexpr std::array<std::string_view, 24> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~",
        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "(", ")", "[", "]"};
    const char c = peek();
    if (c == '(' || c == '[' || c == '{') {
      open += c;
    } else if (c == ')' || c == ']' || c == '}') {
      const char wanted = c == ')' ? '(' : (c == ']' ? '[' : '{');
      if (open.empty() || open.back() != wanted) {
        fail(fmt::format("unexpected '{}'", c));
      }
      open.pop_back();
    }
    if (c == '{' || c == '}') {
      add(TokenKind::kOperator, std::string(1, c));
      skip(1);
      return;
    }
    for (const std::string_view op : kOperators) {
      if (at(op)) {
        add(TokenKind::kOperator, std::string(op));
        skip(op.size());
        return;
      }
    }
    std::size_t end = pos_;
    text::next_code_point(source_, end);
    fail(fmt::format("unexpected character '{}'", source_.substr(pos_, end - pos_)));
  }

  std::string owned_;
  std::string_view source_;
  std::size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace fastfd::jinja
