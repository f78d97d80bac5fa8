#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace fastfd::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value& input, const Args& args);
using TestFunction = bool (*)(Interpreter&, const Value& input, const Args& args);

/// nullptr when there is none of that name.
FilterFunction find_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);
TestFunction find_test(std::string_view name);

/// range, dict, namespace, raise_exception, strftime_now
std::optional<Value> find_global(std::string_view name);

/// Whether objects of this type have a method of that name which templates may call.
bool has_method(const Value& object, std::string_view name);
/// Whether Python has it, but the immutable sandbox does not let it be called.
bool is_unsafe_attribute(const Value& object, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& object, std::string_view name,
                  const Args& args);
bool has_string_method(std::string_view name);
Value call_string_method(Interpreter& interpreter, const std::string& self, std::string_view name,
                         const Args& args);

Value binary(Interpreter& interpreter, BinaryOp op, const Value& left, const Value& right);
Value negate(const Value& operand, bool negative);
/// object[start:stop:step]; nullptr is an absent bound.
Value slice(Interpreter& interpreter, const Value& object, const Value* start, const Value* stop,
            const Value* step);
/// object[index] of strings and lists by Python's rules; nullopt when out of range.
std::optional<Value> element(const Value& object, std::int64_t index);

/// `format % args` and `format.format(...)` of Python, without the rarer conversions.
std::string percent_format(const std::string& format, const Value& args);
std::string brace_format(Interpreter& interpreter, const std::string& format, const Args& args);

/// json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

/// round() of Python: half to even on the decimal that the double really is.
double round_to(double value, std::int64_t digits);

/// Arguments by position or by name, as Python binds them.
class BoundArgs {
 public:
  /// Fails on too many, unknown or doubly given arguments.
  BoundArgs(const Args& args, std::string_view function,
            std::initializer_list<std::string_view> names);

  bool has(std::size_t i) const { return values_[i] != nullptr; }
  /// Fails when it is missing.
  const Value& required(std::size_t i) const;
  Value get(std::size_t i, const Value& fallback) const;
  bool flag(std::size_t i, bool fallback) const;
  /// Fails unless absent (or None) or an integer.
  std::int64_t integer(std::size_t i, std::int64_t fallback) const;
  /// Fails unless a string.
  const std::string& string(std::size_t i) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace fastfd::jinja
