#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_overflow() { fail("integer result does not fit 64 bits"); }

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      fail_overflow();
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      fail_overflow();
    }
  }
  return result;
}

/// Rounds towards minus infinity, as Python's // does.
std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (a == INT64_MIN && b == -1) {
    fail_overflow();
  }
  const std::int64_t quotient = a / b;
  return quotient - static_cast<std::int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

Value integer_arithmetic(BinaryOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kDiv:
      if (b == 0) {
        fail("division by zero");
      }
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      if (b == 0) {
        fail("integer division or modulo by zero");
      }
      if (op == BinaryOp::kFloorDiv) {
        return floor_div(a, b);
      }
      return b == -1 ? std::int64_t{0} : a - floor_div(a, b) * b;
    case BinaryOp::kPow:
      if (b < 0) {
        if (a == 0) {
          fail("0.0 cannot be raised to a negative power");
        }
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      return integer_power(a, b);
  }
  if (overflow) {
    fail_overflow();
  }
  return result;
}

double float_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0.0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value float_arithmetic(BinaryOp op, double a, double b) {
  if (b == 0.0 && (op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod)) {
    fail("float division by zero");
  }
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kFloorDiv:
      return std::floor((a - float_mod(a, b)) / b);
    case BinaryOp::kMod:
      return float_mod(a, b);
    case BinaryOp::kPow:
      return std::pow(a, b);
  }
  return 0.0;
}

std::size_t repeat_count(std::size_t size, std::int64_t times) {
  constexpr std::size_t kMaxElements = std::size_t{1} << 31;
  if (times <= 0 || size == 0) {
    return 0;
  }
  if (static_cast<std::uint64_t>(times) > kMaxElements / size) {
    fail_limit("a repeated string or list is too large");
  }
  return static_cast<std::size_t>(times);
}

Value repeat(Interpreter& interpreter, const Value& sequence, std::int64_t times) {
  if (const std::string* text = sequence.string()) {
    const std::size_t count = repeat_count(text->size(), times);
    interpreter.charge(text->size() * count);
    std::string result;
    result.reserve(text->size() * count);
    for (std::size_t i = 0; i < count; ++i) {
      result += *text;
    }
    return result;
  }
  const List& list = *sequence.list();
  const std::size_t count = repeat_count(list.items.size(), times);
  interpreter.charge(list.items.size() * count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(list.items.size() * count);
  for (std::size_t i = 0; i < count; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), list.kind);
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.is_string() ||
         (list != nullptr && (list->kind == List::Kind::kList || list->kind == List::Kind::kTuple));
}

/// Slice bounds of Python (PySlice_AdjustIndices).
struct SliceRange {
  std::int64_t start;
  std::int64_t stop;
  std::int64_t step;

  std::vector<std::size_t> indices() const {
    std::vector<std::size_t> result;
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
      result.push_back(static_cast<std::size_t>(i));
      if (step > 0 ? step >= stop - i : step <= stop - i) {
        break;  // the next would be past the end, or overflow
      }
    }
    return result;
  }
};

std::optional<std::int64_t> slice_bound(const Value* bound) {
  if (bound == nullptr || bound->is_none()) {
    return std::nullopt;
  }
  require_defined(*bound);
  if (const auto value = bound->integer()) {
    return value;
  }
  fail("slice indices must be integers or None");
}

SliceRange slice_range(std::int64_t size, const Value* start, const Value* stop,
                       const Value* step) {
  SliceRange range{0, size, slice_bound(step).value_or(1)};
  if (range.step == 0) {
    fail("slice step cannot be zero");
  }
  const bool forward = range.step > 0;
  const std::int64_t low = forward ? 0 : -1;
  const std::int64_t high = forward ? size : size - 1;
  const auto clamp = [&](std::int64_t i) { return std::clamp(i < 0 ? i + size : i, low, high); };
  const auto start_value = slice_bound(start);
  const auto stop_value = slice_bound(stop);
  range.start = start_value ? clamp(*start_value) : (forward ? low : high);
  range.stop = stop_value ? clamp(*stop_value) : (forward ? high : low);
  return range;
}

/// Byte offsets of the characters, with the end as one more.
std::vector<std::size_t> character_offsets(const std::string& text) {
  std::vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (std::size_t pos = 0; pos < text.size();) {
    offsets.push_back(pos);
    text::next_code_point(text, pos);
  }
  offsets.push_back(text.size());
  return offsets;
}

Value slice_string(const std::string& text, const Value* start, const Value* stop,
                   const Value* step) {
  const std::vector<std::size_t> offsets = character_offsets(text);
  const auto size = static_cast<std::int64_t>(offsets.size() - 1);
  const SliceRange range = slice_range(size, start, stop, step);
  if (range.step == 1) {
    const auto begin = static_cast<std::size_t>(range.start);
    const auto end = static_cast<std::size_t>(std::max(range.start, range.stop));
    return text.substr(offsets[begin], offsets[end] - offsets[begin]);
  }
  std::string result;
  for (const std::size_t i : range.indices()) {
    result.append(text, offsets[i], offsets[i + 1] - offsets[i]);
  }
  return result;
}

}  // namespace

Value binary(Interpreter& interpreter, BinaryOp op, const Value& left, const Value& right) {
  require_defined(left);
  if (op == BinaryOp::kMod && left.is_string()) {
    std::string text = percent_format(*left.string(), right);
    interpreter.charge(text.size());
    return text;
  }
  require_defined(right);
  if (left.is_integer() && right.is_integer()) {
    return integer_arithmetic(op, *left.integer(), *right.integer());
  }
  if (left.is_number() && right.is_number()) {
    return float_arithmetic(op, *left.number(), *right.number());
  }
  if (op == BinaryOp::kAdd && left.is_string() && right.is_string()) {
    interpreter.charge(left.string()->size() + right.string()->size());
    return *left.string() + *right.string();
  }
  if (op == BinaryOp::kAdd && is_sequence(left) && is_sequence(right) && !left.is_string() &&
      !right.is_string() && left.list()->kind == right.list()->kind) {
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
    interpreter.charge(items.size() * sizeof(Value));
    return make_list(std::move(items), left.list()->kind);
  }
  if (op == BinaryOp::kMul && is_sequence(left) && right.is_integer()) {
    return repeat(interpreter, left, *right.integer());
  }
  if (op == BinaryOp::kMul && left.is_integer() && is_sequence(right)) {
    return repeat(interpreter, right, *left.integer());
  }
  if (op == BinaryOp::kAdd && left.is_string()) {
    fail(fmt::format("can only concatenate str (not \"{}\") to str", type_name(right)));
  }
  fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'",
                   kSymbols[static_cast<std::size_t>(op)], type_name(left), type_name(right)));
}

Value negate(const Value& operand, bool negative) {
  require_defined(operand);
  if (const auto* value = operand.get_if<double>()) {
    return negative ? -*value : *value;
  }
  if (const auto value = operand.integer()) {
    if (negative && *value == INT64_MIN) {
      fail_overflow();
    }
    return negative ? -*value : *value;
  }
  fail(
      fmt::format("bad operand type for unary {}: '{}'", negative ? '-' : '+', type_name(operand)));
}

Value slice(Interpreter& interpreter, const Value& object, const Value* start, const Value* stop,
            const Value* step) {
  require_defined(object);
  if (const std::string* text = object.string()) {
    interpreter.charge(text->size());
    return slice_string(*text, start, stop, step);
  }
  if (!is_sequence(object)) {
    return Value::undefined(fmt::format("'{} object' cannot be sliced", type_name(object)));
  }
  const List& list = *object.list();
  const SliceRange range =
      slice_range(static_cast<std::int64_t>(list.items.size()), start, stop, step);
  std::vector<Value> items;
  for (const std::size_t i : range.indices()) {
    items.push_back(list.items[i]);
  }
  interpreter.charge(items.size() * sizeof(Value));
  return make_list(std::move(items), list.kind);
}

std::optional<Value> element(const Value& object, std::int64_t index) {
  if (!is_sequence(object)) {
    return std::nullopt;
  }
  const std::int64_t size = length(object);
  if (index < 0) {
    index += size;
  }
  if (index < 0 || index >= size) {
    return std::nullopt;
  }
  const std::string* text = object.string();
  if (text == nullptr) {
    return object.list()->items[static_cast<std::size_t>(index)];
  }
  std::size_t begin = 0;
  if (static_cast<std::size_t>(size) == text->size()) {
    begin = static_cast<std::size_t>(index);
  } else {
    for (; index > 0; --index) {
      text::next_code_point(*text, begin);
    }
  }
  std::size_t end = begin;
  text::next_code_point(*text, end);
  return Value(text->substr(begin, end - begin));
}

}  // namespace fastfd::jinja
