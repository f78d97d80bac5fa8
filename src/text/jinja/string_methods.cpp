#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/jinja/string_tools.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

using I = Interpreter;
using S = const std::string&;
using A = const Args&;
using StringMethod = Value (*)(I&, S, A);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };

template <Side side>
Value strip_method(I& /*i*/, S self, A args) {
  const BoundArgs bound(args, "strip", {"chars"});
  const bool has_chars = bound.has(0) && !bound.get(0, Value()).is_none();
  return strip(self, has_chars ? &bound.string(0) : nullptr, side != Side::kRight,
               side != Side::kLeft);
}

template <bool from_right>
Value split_method(I& i, S self, A args) {
  const BoundArgs bound(args, from_right ? "rsplit" : "split", {"sep", "maxsplit"});
  const bool has_separator = bound.has(0) && !bound.get(0, Value()).is_none();
  const std::int64_t max_split = bound.integer(1, -1);
  std::vector<std::string_view> parts;
  if (!has_separator) {
    parts = split_space(self, max_split, from_right);
  } else if (bound.string(0).empty()) {
    fail("empty separator");
  } else {
    parts = split_at(self, bound.string(0), max_split, from_right);
  }
  i.charge(parts.size() * sizeof(Value));
  return make_list({parts.begin(), parts.end()});
}

Value splitlines(I& /*i*/, S self, A args) {
  const BoundArgs bound(args, "splitlines", {"keepends"});
  const auto lines = split_lines(self, bound.flag(0, false));
  return make_list({lines.begin(), lines.end()});
}

template <bool at_end>
Value starts_or_ends(I& i, S self, A args) {
  const BoundArgs bound(args, at_end ? "endswith" : "startswith", {"prefix", "start", "end"});
  std::string part = self;
  if (bound.has(1)) {
    const Value& start = bound.required(1);
    const Value end = bound.get(2, Value());
    part = *slice(i, Value(self), &start, &end, nullptr).string();
  }
  const auto matches = [&](const Value& affix) {
    const std::string* text = affix.string();
    if (text == nullptr) {
      require_defined(affix);
      fail(fmt::format("{} first arg must be str or a tuple of str, not {}",
                       at_end ? "endswith" : "startswith", type_name(affix)));
    }
    return at_end ? part.ends_with(*text) : part.starts_with(*text);
  };
  const Value& affix = bound.required(0);
  if (const List* list = affix.list(); list != nullptr && list->kind == List::Kind::kTuple) {
    return std::any_of(list->items.begin(), list->items.end(), matches);
  }
  return matches(affix);
}

Value replace_method(I& i, S self, A args) {
  const BoundArgs bound(args, "replace", {"old", "new", "count"});
  std::string result = replace_all(self, bound.string(0), bound.string(1), bound.integer(2, -1), i);
  return result;
}

template <bool from_right, bool must_exist>
Value find_method(I& /*i*/, S self, A args) {
  const BoundArgs bound(args, "find", {"sub", "start"});
  std::size_t start = 0;
  for (std::int64_t n = std::max<std::int64_t>(bound.integer(1, 0), 0);
       n > 0 && start < self.size(); --n) {
    text::next_code_point(self, start);
  }
  std::size_t at = from_right ? self.rfind(bound.string(0)) : self.find(bound.string(0), start);
  if (from_right && at != std::string::npos && at < start) {
    at = std::string::npos;
  }
  if (at == std::string::npos) {
    if (must_exist) {
      fail("substring not found");
    }
    return std::int64_t{-1};
  }
  return length(Value(std::string_view(self).substr(0, at)));
}

Value count_method(I& /*i*/, S self, A args) {
  const std::string& part = BoundArgs(args, "count", {"sub"}).string(0);
  if (part.empty()) {
    return length(Value(self)) + 1;
  }
  std::int64_t count = 0;
  for (std::size_t at = self.find(part); at != std::string::npos;
       at = self.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

Value join_method(I& i, S self, A args) {
  const ListPtr items = iterate(BoundArgs(args, "join", {"iterable"}).required(0));
  std::string result;
  for (std::size_t n = 0; n < items->items.size(); ++n) {
    const std::string* text = items->items[n].string();
    if (text == nullptr) {
      fail(fmt::format("sequence item {}: expected str instance, {} found", n,
                       type_name(items->items[n])));
    }
    result += n == 0 ? "" : self;
    result += *text;
    i.charge(text->size() + self.size());
  }
  return result;
}

template <bool prefix>
Value remove_affix(I& /*i*/, S self, A args) {
  const std::string& affix = BoundArgs(args, "removeprefix", {"affix"}).string(0);
  if (prefix && self.starts_with(affix)) {
    return self.substr(affix.size());
  }
  if (!prefix && self.ends_with(affix)) {
    return self.substr(0, self.size() - affix.size());
  }
  return self;
}

template <bool from_right>
Value partition(I& /*i*/, S self, A args) {
  const std::string& separator = BoundArgs(args, "partition", {"sep"}).string(0);
  if (separator.empty()) {
    fail("empty separator");
  }
  const std::size_t at = from_right ? self.rfind(separator) : self.find(separator);
  if (at == std::string::npos) {
    return from_right ? make_list({"", "", self}, List::Kind::kTuple)
                      : make_list({self, "", ""}, List::Kind::kTuple);
  }
  return make_list({self.substr(0, at), separator, self.substr(at + separator.size())},
                   List::Kind::kTuple);
}

template <Side side>
Value justify(I& i, S self, A args) {
  const BoundArgs bound(args, "justify", {"width", "fillchar"});
  bound.required(0);
  const std::int64_t missing = bound.integer(0, 0) - length(Value(self));
  const std::string fill = bound.has(1) ? bound.string(1) : " ";
  if (missing <= 0) {
    return self;
  }
  // str.center puts the odd one on the left when the width is odd.
  const std::int64_t left =
      side == Side::kLeft
          ? 0
          : (side == Side::kRight ? missing : missing / 2 + (missing & bound.integer(0, 0) & 1));
  const Value left_fill = binary(i, BinaryOp::kMul, Value(fill), Value(left));
  const Value right_fill = binary(i, BinaryOp::kMul, Value(fill), Value(missing - left));
  return *left_fill.string() + self + *right_fill.string();
}

Value zfill(I& i, S self, A args) {
  const BoundArgs bound(args, "zfill", {"width"});
  bound.required(0);
  const std::int64_t missing = bound.integer(0, 0) - length(Value(self));
  if (missing <= 0) {
    return self;
  }
  const Value zeros = binary(i, BinaryOp::kMul, Value("0"), Value(missing));
  const std::size_t sign = self.starts_with('-') || self.starts_with('+') ? 1 : 0;
  return self.substr(0, sign) + *zeros.string() + self.substr(sign);
}

/// Every character satisfies the predicate, and there is one.
template <bool (*predicate)(char32_t)>
Value all_characters(I& /*i*/, S self, A args) {
  const BoundArgs bound(args, "is...", {});
  bool all = !self.empty();
  for (std::size_t pos = 0; all && pos < self.size();) {
    all = predicate(text::next_code_point(self, pos));
  }
  return all;
}

bool is_digit(char32_t c) {
  return text::is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}
bool is_alphanumeric(char32_t c) { return text::is_letter(c) || text::is_number(c); }
bool is_ascii(char32_t c) { return c < 0x80; }

template <Value (*convert)(S)>
Value plain(I& /*i*/, S self, A args) {
  const BoundArgs bound(args, "method", {});
  return convert(self);
}

Value upper(S self) { return text::to_upper(self); }
Value lower(S self) { return text::to_lower(self); }
Value title(S self) { return title_case(self); }
Value capitalize(S self) { return capitalized(self); }
Value swap_case(S self) {
  std::string out;
  for (std::size_t pos = 0; pos < self.size();) {
    const char32_t c = text::next_code_point(self, pos);
    text::is_upper(c) ? text::append_lower(out, c) : text::append_upper(out, c);
  }
  return out;
}

template <bool upper>
Value is_case(I& i, S self, A args) {
  const BoundArgs bound(args, "is...", {});
  return i.call_test(upper ? "upper" : "lower", Value(self), {});
}

Value format_method(I& i, S self, A args) { return brace_format(i, self, args); }

const std::unordered_map<std::string_view, StringMethod>& table() {
  static const auto* methods = new std::unordered_map<std::string_view, StringMethod>{
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", splitlines},
      {"startswith", starts_or_ends<false>},
      {"endswith", starts_or_ends<true>},
      {"replace", replace_method},
      {"find", find_method<false, false>},
      {"rfind", find_method<true, false>},
      {"index", find_method<false, true>},
      {"rindex", find_method<true, true>},
      {"count", count_method},
      {"join", join_method},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"ljust", justify<Side::kLeft>},
      {"rjust", justify<Side::kRight>},
      {"center", justify<Side::kBoth>},
      {"zfill", zfill},
      {"upper", plain<upper>},
      {"lower", plain<lower>},
      {"casefold", plain<lower>},
      {"title", plain<title>},
      {"capitalize", plain<capitalize>},
      {"swapcase", plain<swap_case>},
      {"isalpha", all_characters<text::is_letter>},
      {"isdigit", all_characters<is_digit>},
      {"isdecimal", all_characters<text::is_decimal>},
      {"isnumeric", all_characters<text::is_number>},
      {"isalnum", all_characters<is_alphanumeric>},
      {"isspace", all_characters<text::is_python_space>},
      {"isascii", all_characters<is_ascii>},
      {"isupper", is_case<true>},
      {"islower", is_case<false>},
      {"format", format_method},
  };
  return *methods;
}

}  // namespace

bool has_string_method(std::string_view name) { return table().contains(name); }

Value call_string_method(Interpreter& interpreter, const std::string& self, std::string_view name,
                         const Args& args) {
  interpreter.charge(self.size());
  return table().at(name)(interpreter, self, args);
}

}  // namespace fastfd::jinja
