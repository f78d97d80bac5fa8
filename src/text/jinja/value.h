#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace fastfd::jinja {

class Interpreter;
class Value;
struct List;
struct Dict;
struct Namespace;
struct Function;
class Loop;

using StringPtr = std::shared_ptr<const std::string>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using NamespacePtr = std::shared_ptr<Namespace>;
using FunctionPtr = std::shared_ptr<const Function>;
using LoopPtr = std::shared_ptr<Loop>;

/// Jinja's Undefined: prints as nothing, is false and empty, fails with `hint` when used otherwise.
struct Undefined {
  StringPtr hint;
};
struct None {};

/// A Python value as templates see it. Copies share; only namespaces and loops can change.
class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}          // NOLINT(google-explicit-constructor)
  Value(std::int64_t value) : data_(value) {}  // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}        // NOLINT(google-explicit-constructor)
  Value(std::string value)                     // NOLINT(google-explicit-constructor)
      : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value)  // NOLINT(google-explicit-constructor)
      : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Value(ListPtr value) : data_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Value(DictPtr value) : data_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Value(NamespacePtr value) : data_(std::move(value)) {}   // NOLINT(google-explicit-constructor)
  Value(FunctionPtr value) : data_(std::move(value)) {}    // NOLINT(google-explicit-constructor)
  Value(LoopPtr value) : data_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  template <typename T>
  Value(const T* pointer) = delete;  ///< would become a bool
  static Value undefined(std::string hint);

  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_string() const { return std::holds_alternative<StringPtr>(data_); }
  /// Bools are numbers, as in Python.
  bool is_integer() const;
  bool is_number() const;
  const std::string* string() const;  ///< nullptr unless a string
  const List* list() const;
  const Dict* dict() const;
  std::optional<std::int64_t> integer() const;  ///< of integers and bools
  std::optional<double> number() const;         ///< of integers, bools and floats

  /// Containers inside of containers; bounded, so that neither printing nor freeing recurses deep.
  std::uint32_t depth() const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, StringPtr, ListPtr, DictPtr,
               NamespacePtr, FunctionPtr, LoopPtr>
      data_;
};

struct List {
  enum class Kind : std::uint8_t { kList, kTuple, kGenerator, kDictKeys, kDictValues, kDictItems };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  std::uint32_t depth = 1;
  mutable bool consumed = false;  ///< a generator that was iterated is empty
};

/// Keys in order of insertion. Immutable, like everything the sandbox hands to templates.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string_view, std::size_t> index;  ///< string keys; into `items`
  std::uint32_t depth = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

struct Function {
  std::string name;
  std::function<Value(Interpreter&, Args)> call;
  bool is_macro = false;
  std::uint32_t depth = 1;
};

/// Throw Failure (limit) beyond this nesting of containers.
inline constexpr std::uint32_t kMaxValueDepth = 150;

Value make_list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
/// Later entries replace earlier ones with an equal key. Keys must be hashable.
Value make_dict(std::vector<std::pair<Value, Value>> items);

/// Python's names: "str", "int", "dict", ...
std::string type_name(const Value& value);

bool is_true(const Value& value);
bool equals(const Value& a, const Value& b);
/// Negative, zero, positive. Fails as Python does for types without an order between them;
/// `op` is the operator in the message.
int compare(const Value& a, const Value& b, std::string_view op);
/// Python's `item in container`.
bool contains(const Value& container, const Value& item);
/// len()
std::int64_t length(const Value& value);
/// What a for loop sees; fails for what is not iterable. Empty for undefined.
ListPtr iterate(const Value& value);

/// str() and repr() of Python.
std::string to_string(const Value& value);
void append_string(std::string& out, const Value& value);
std::string repr(const Value& value);
std::string float_repr(double value);

/// Fails with the hint of an undefined value.
void require_defined(const Value& value);

}  // namespace fastfd::jinja
