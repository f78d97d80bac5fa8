#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

const Value& argument(const Args& args) { return BoundArgs(args, "test", {"other"}).required(0); }

template <typename Compare>
bool order(const Value& input, const Args& args, std::string_view op, Compare holds) {
  return holds(compare(input, argument(args), op));
}

/// str.islower and str.isupper: at least one cased character and none of the other case.
bool all_of_case(const std::string& text, bool upper) {
  bool any = false;
  for (std::size_t pos = 0; pos < text.size();) {
    const char32_t c = text::next_code_point(text, pos);
    if (upper ? text::is_lower(c) : text::is_upper(c)) {
      return false;
    }
    any |= upper ? text::is_upper(c) : text::is_lower(c);
  }
  return any;
}

std::int64_t integer_of(const Value& value) {
  require_defined(value);
  if (const auto i = value.integer()) {
    return *i;
  }
  fail("the test needs an integer");
}

bool is_sequence(const Value& value) {
  if (const List* list = value.list()) {
    return list->kind == List::Kind::kList || list->kind == List::Kind::kTuple;
  }
  return value.is_string() || value.dict() != nullptr;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.list() != nullptr ||
         value.dict() != nullptr;
}

bool is_same(const Value& a, const Value& b) {
  if (a.get_if<bool>() != nullptr || b.get_if<bool>() != nullptr) {
    return a.get_if<bool>() != nullptr && b.get_if<bool>() != nullptr && equals(a, b);
  }
  return type_name(a) == type_name(b) && equals(a, b);
}

using I = Interpreter;
using V = const Value&;
using A = const Args&;

const std::unordered_map<std::string_view, TestFunction>& table() {
  static const auto* tests = new std::unordered_map<std::string_view, TestFunction>{
      {"defined", [](I&, V v, A) { return !v.is_undefined(); }},
      {"undefined", [](I&, V v, A) { return v.is_undefined(); }},
      {"none", [](I&, V v, A) { return v.is_none(); }},
      {"boolean", [](I&, V v, A) { return v.get_if<bool>() != nullptr; }},
      {"true", [](I&, V v, A) { return v.get_if<bool>() != nullptr && is_true(v); }},
      {"false", [](I&, V v, A) { return v.get_if<bool>() != nullptr && !is_true(v); }},
      {"integer", [](I&, V v, A) { return v.get_if<std::int64_t>() != nullptr; }},
      {"float", [](I&, V v, A) { return v.get_if<double>() != nullptr; }},
      {"number", [](I&, V v, A) { return v.is_number(); }},
      {"string", [](I&, V v, A) { return v.is_string(); }},
      {"mapping", [](I&, V v, A) { return v.dict() != nullptr; }},
      {"sequence", [](I&, V v, A) { return is_sequence(v) || v.is_undefined(); }},
      {"iterable", [](I&, V v, A) { return is_iterable(v); }},
      {"callable", [](I&, V v, A) { return v.get_if<FunctionPtr>() != nullptr; }},
      {"lower", [](I&, V v, A) { return all_of_case(to_string(v), false); }},
      {"upper", [](I&, V v, A) { return all_of_case(to_string(v), true); }},
      {"odd", [](I&, V v, A) { return integer_of(v) % 2 != 0; }},
      {"even", [](I&, V v, A) { return integer_of(v) % 2 == 0; }},
      {"divisibleby",
       [](I& i, V v, A a) {
         return is_true(negate(binary(i, BinaryOp::kMod, v, argument(a)), false)) == false;
       }},
      {"in", [](I&, V v, A a) { return contains(argument(a), v); }},
      {"sameas", [](I&, V v, A a) { return is_same(v, argument(a)); }},
      {"filter",
       [](I&, V v, A) {
         return find_filter(to_string(v)) != nullptr ||
                find_sequence_filter(to_string(v)) != nullptr;
       }},
      {"test", [](I&, V v, A) { return find_test(to_string(v)) != nullptr; }},
      {"eq", [](I&, V v, A a) { return equals(v, argument(a)); }},
      {"ne", [](I&, V v, A a) { return !equals(v, argument(a)); }},
      {"lt", [](I&, V v, A a) { return order(v, a, "<", [](int c) { return c < 0; }); }},
      {"le", [](I&, V v, A a) { return order(v, a, "<=", [](int c) { return c <= 0; }); }},
      {"gt", [](I&, V v, A a) { return order(v, a, ">", [](int c) { return c > 0; }); }},
      {"ge", [](I&, V v, A a) { return order(v, a, ">=", [](int c) { return c >= 0; }); }},
  };
  return *tests;
}

std::string_view canonical(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
      {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"},       {">", "gt"}, {"greaterthan", "gt"},
      {">=", "ge"}, {"<", "lt"},       {"lessthan", "lt"}, {"<=", "le"}};
  for (const auto& [alias, target] : kAliases) {
    if (name == alias) {
      return target;
    }
  }
  return name;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto it = table().find(canonical(name));
  return it == table().end() ? nullptr : it->second;
}

}  // namespace fastfd::jinja
