#include <fmt/format.h>

#include <cctype>
#include <utility>
#include <vector>

#include "fastfd/text/error.h"
#include "text/regex.h"

namespace fastfd::text {
namespace {

/// One pass over the pattern that copies it and rewrites what means something else in PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (pos_ < pattern_.size()) {
      step();
    }
    return std::move(out_);
  }

 private:
  void step() {
    const char c = pattern_[pos_];
    switch (c) {
      case '\\':
        atom_start_ = out_.size();
        escape();
        return;
      case '[':
        atom_start_ = out_.size();
        char_class();
        return;
      case '(':
        group_starts_.push_back(out_.size());
        open_group();
        return;
      case ')':
        if (!group_starts_.empty()) {
          atom_start_ = group_starts_.back();
          group_starts_.pop_back();
        }
        copy(1);
        return;
      case '{':
        interval();
        return;
      case '*':
      case '+':
      case '?':
      case '|':
        copy(1);
        return;
      default:
        atom_start_ = out_.size();
        copy(1);
        while (pos_ < pattern_.size() &&
               (static_cast<unsigned char>(pattern_[pos_]) & 0xC0) == 0x80) {
          copy(1);
        }
        return;
    }
  }

  void copy(std::size_t n) {
    out_ += pattern_.substr(pos_, n);
    pos_ += n;
  }

  [[noreturn]] void refuse(std::string_view what, std::string_view remedy) const {
    throw TextError(fmt::format("regular expression '{}' uses {}, which is not supported; {}",
                                pattern_, what, remedy));
  }

  char peek(std::size_t offset) const {
    return pos_ + offset < pattern_.size() ? pattern_[pos_ + offset] : '\0';
  }

  /// `(?m` means "dot matches newline" in Ruby's dialect: PCRE2 calls that s.
  void open_group() {
    copy(1);
    if (peek(0) != '?') {
      return;
    }
    copy(1);
    while (std::isalpha(static_cast<unsigned char>(peek(0))) != 0 || peek(0) == '-') {
      const char flag = peek(0);
      if (flag == 'm') {
        out_ += 's';
        ++pos_;
      } else if (flag == 'i' || flag == 'x' || flag == '-') {
        copy(1);
      } else {
        return;
      }
    }
  }

  /// `X{n,m}+` repeats the whole in Ruby's dialect; in PCRE2 it would be possessive.
  void interval() {
    std::size_t end = pos_ + 1;
    while (end < pattern_.size() &&
           (std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0 || pattern_[end] == ',')) {
      ++end;
    }
    const bool is_interval = end < pattern_.size() && pattern_[end] == '}' && end > pos_ + 1;
    if (!is_interval) {
      atom_start_ = out_.size();
      out_ += "\\{";
      ++pos_;
      return;
    }
    std::string quantifier(pattern_.substr(pos_, end + 1 - pos_));
    if (quantifier.starts_with("{,")) {
      quantifier = fmt::format("{{0{}", quantifier.substr(1));  // PCRE2 10.42 takes {,m} literally
    }
    out_ += quantifier;
    pos_ = end + 1;
    if (peek(0) == '+') {
      out_ = fmt::format("{}(?:{})+", std::string_view(out_).substr(0, atom_start_),
                         std::string_view(out_).substr(atom_start_));
      ++pos_;
    }
  }

  /// Members of \w, as written inside a class.
  static constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

  void escape() {
    if (pos_ + 1 == pattern_.size()) {
      refuse("a backslash at its end", "escape it");
    }
    switch (peek(1)) {
      case 'w':
        emit(fmt::format("[{}]", kWord), 2);
        return;
      case 'W':
        emit(fmt::format("[^{}]", kWord), 2);
        return;
      case 'h':
        emit("[0-9a-fA-F]", 2);
        return;
      case 'H':
        emit("[^0-9a-fA-F]", 2);
        return;
      default:
        common_escape();
    }
  }

  void emit(std::string_view text, std::size_t consumed) {
    out_ += text;
    pos_ += consumed;
  }

  /// Escapes that mean the same inside and outside of a class.
  void common_escape() {
    switch (peek(1)) {
      case 's':  // PCRE2's own \s also has U+180E, which left White_Space in Unicode 6.3
        emit("\\p{White_Space}", 2);
        return;
      case 'S':
        emit("\\P{White_Space}", 2);
        return;
      case 'u':
        emit(fmt::format("\\x{{{}}}", hex_digits(4)), 6);
        return;
      case 'p':
      case 'P':
        property();
        return;
      case '/':
        emit("\\/", 2);
        return;
      default:
        copy(2);
    }
  }

  std::string_view hex_digits(std::size_t n) const {
    const std::string_view digits = pattern_.substr(pos_ + 2, n);
    for (const char c : digits) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
        refuse("\\u without four hexadecimal digits", "write \\uXXXX");
      }
    }
    if (digits.size() != n) {
      refuse("\\u without four hexadecimal digits", "write \\uXXXX");
    }
    return digits;
  }

  /// \p{Han} is the script in Oniguruma and the script extensions in PCRE2.
  void property() {
    const std::size_t close = pattern_.find('}', pos_);
    if (peek(2) != '{' || close == std::string_view::npos) {
      copy(2);
      return;
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::string_view p = negated ? "\\P{" : "\\p{";
    const std::string posix = posix_class(name);
    if (!posix.empty()) {
      out_ += fmt::format("{}{}}}", p, posix);
    } else if (name.size() > 2 && !is_binary_property(name) &&
               name.find('=') == std::string_view::npos) {
      out_ += fmt::format("{}sc:{}}}", p, name);
    } else {
      out_ += fmt::format("{}{}}}", p, name);
    }
    pos_ = close + 1;
  }

  static std::string lowered(std::string_view name) {
    std::string result;
    for (const char c : name) {
      if (c != '_' && c != '-' && c != ' ') {
        result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
    return result;
  }

  /// Long names of general categories, which PCRE2 does not know.
  static std::string posix_class(std::string_view name) {
    static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"letter", "L"},
        {"uppercaseletter", "Lu"},
        {"lowercaseletter", "Ll"},
        {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"},
        {"otherletter", "Lo"},
        {"mark", "M"},
        {"nonspacingmark", "Mn"},
        {"number", "N"},
        {"decimalnumber", "Nd"},
        {"punctuation", "P"},
        {"punct", "P"},
        {"symbol", "S"},
        {"separator", "Z"},
        {"other", "C"},
        {"digit", "Nd"},
        {"space", "White_Space"},
        {"alpha", "Alphabetic"},
        {"upper", "Uppercase"},
        {"lower", "Lowercase"},
    };
    const std::string key = lowered(name);
    for (const auto& [long_name, short_name] : kNames) {
      if (key == long_name) {
        return std::string(short_name);
      }
    }
    return {};
  }

  static bool is_binary_property(std::string_view name) {
    static constexpr std::string_view kNames[] = {"any",
                                                  "whitespace",
                                                  "alphabetic",
                                                  "uppercase",
                                                  "lowercase",
                                                  "emoji",
                                                  "dash",
                                                  "math",
                                                  "ideographic",
                                                  "extendedpictographic",
                                                  "emojipresentation",
                                                  "emojimodifier",
                                                  "emojicomponent",
                                                  "defaultignorablecodepoint"};
    const std::string key = lowered(name);
    for (const std::string_view known : kNames) {
      if (key == known) {
        return true;
      }
    }
    return false;
  }

  void char_class() { out_ += class_expression(); }

  /// A union of class members: those that a PCRE2 class can hold, and classes in it.
  struct ClassUnion {
    std::string members;
    std::vector<std::string> nested;  ///< expressions that match one character each
  };

  /// The class at `pos_` as an expression that matches one character. PCRE2 knows neither classes
  /// in classes nor `&&`, which binds loosest and takes the `^` before it: they become
  /// alternatives and lookaheads.
  std::string class_expression() {
    ++pos_;
    const bool negated = peek(0) == '^';
    pos_ += negated ? 1 : 0;
    std::vector<std::string> operands;
    ClassUnion current;
    bool is_first = true;
    while (pos_ < pattern_.size() && (is_first || pattern_[pos_] != ']')) {
      is_first = false;
      if (pattern_.substr(pos_).starts_with("&&")) {
        operands.push_back(union_expression(std::exchange(current, {})));
        pos_ += 2;
      } else {
        class_member(current);
      }
    }
    if (pos_ == pattern_.size()) {
      refuse("a character class without end", "add the missing ']'");
    }
    ++pos_;
    if (operands.empty() && current.nested.empty()) {
      return fmt::format("[{}{}]", negated ? "^" : "", current.members);
    }
    std::string all = union_expression(current);
    for (const std::string& operand : operands) {
      all = fmt::format("(?={}){}", operand, all);
    }
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : fmt::format("(?:{})", all);
  }

  static std::string union_expression(const ClassUnion& set) {
    std::string all;
    for (const std::string& nested : set.nested) {
      all += (all.empty() ? "" : "|") + nested;
    }
    if (!set.members.empty()) {
      all += fmt::format("{}[{}]", all.empty() ? "" : "|", set.members);
    }
    return all.empty() ? "(?!)" : fmt::format("(?:{})", all);
  }

  /// [:name:] or [:^name:]; in PCRE2 some of them mean other characters.
  void bracket(std::string_view name, ClassUnion& set) const {
    static constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
        {"alnum", "\\p{Alphabetic}\\p{Nd}"},
        {"alpha", "\\p{Alphabetic}"},
        {"ascii", "\\x00-\\x7F"},
        {"blank", "\\p{Zs}\\t"},
        {"cntrl", "\\p{Cc}"},
        {"digit", "\\p{Nd}"},
        {"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"},
        {"lower", "\\p{Lowercase}"},
        {"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}"},
        {"punct", "\\p{P}\\p{S}"},
        {"space", "\\p{White_Space}"},
        {"upper", "\\p{Uppercase}"},
        {"word", kWord},
        {"xdigit", "0-9a-fA-F"},
    };
    const bool negated = name.starts_with('^');
    name.remove_prefix(negated ? 1 : 0);
    for (const auto& [known, members] : kBrackets) {
      if (name == known && negated) {
        set.nested.push_back(fmt::format("[^{}]", members));
        return;
      }
      if (name == known) {
        set.members += members;
        return;
      }
    }
    refuse(fmt::format("[:{}:]", name), "list the characters instead");
  }

  /// Adds the member at `pos_`.
  void class_member(ClassUnion& set) {
    if (peek(0) == '[') {
      const std::size_t close = pattern_.find(":]", pos_);
      if (peek(1) == ':' && close != std::string_view::npos) {
        bracket(pattern_.substr(pos_ + 2, close - pos_ - 2), set);
        pos_ = close + 2;
      } else {
        set.nested.push_back(class_expression());
      }
      return;
    }
    if (peek(0) != '\\') {
      set.members += pattern_[pos_++];
      return;
    }
    switch (peek(1)) {
      case '\0':
        refuse("a backslash at its end", "escape it");
      case 'w':
        set.members += kWord;
        pos_ += 2;
        return;
      case 'h':
        set.members += "0-9a-fA-F";
        pos_ += 2;
        return;
      case 'W':
        set.nested.push_back(fmt::format("[^{}]", kWord));
        pos_ += 2;
        return;
      case 'H':
        set.nested.emplace_back("[^0-9a-fA-F]");
        pos_ += 2;
        return;
      default: {
        std::string outside = std::exchange(out_, std::move(set.members));
        common_escape();
        set.members = std::exchange(out_, std::move(outside));
      }
    }
  }

  std::string_view pattern_;
  std::size_t pos_ = 0;
  std::string out_;
  std::size_t atom_start_ = 0;
  std::vector<std::size_t> group_starts_;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace fastfd::text
