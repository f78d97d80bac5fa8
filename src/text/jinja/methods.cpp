#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"

namespace fastfd::jinja {
namespace {

template <std::size_t n>
bool is_one_of(std::string_view name, const std::array<std::string_view, n>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 5> kDictMethods = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};
constexpr std::array<std::string_view, 2> kTupleMethods = {"index", "count"};
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};

Value dict_view(const Dict& dict, std::string_view name) {
  std::vector<Value> items;
  items.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (name == "items") {
      items.push_back(make_list({key, value}, List::Kind::kTuple));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  return make_list(std::move(items), name == "items"  ? List::Kind::kDictItems
                                     : name == "keys" ? List::Kind::kDictKeys
                                                      : List::Kind::kDictValues);
}

Value call_dict_method(Interpreter& interpreter, const Value& object, std::string_view name,
                       const Args& args) {
  const Dict& dict = *object.dict();
  if (name == "get") {
    const BoundArgs bound(args, "get", {"key", "default"});
    const Value& key = bound.required(0);
    const Value* value = contains(object, key) ? dict.find(key) : nullptr;
    return value != nullptr ? *value : bound.get(1, Value());
  }
  const BoundArgs bound(args, name, {});
  if (name == "copy") {
    return object;  // nothing can change either of them
  }
  interpreter.charge(dict.items.size() * sizeof(Value));
  return dict_view(dict, name);
}

Value call_list_method(Interpreter& interpreter, const Value& object, std::string_view name,
                       const Args& args) {
  const List& list = *object.list();
  interpreter.charge(list.items.size() * sizeof(Value));
  if (name == "copy") {
    const BoundArgs bound(args, "copy", {});
    return object;
  }
  const BoundArgs bound(args, name, {"value"});
  const Value& wanted = bound.required(0);
  const auto is_wanted = [&](const Value& item) { return equals(item, wanted); };
  if (name == "count") {
    return static_cast<std::int64_t>(
        std::count_if(list.items.begin(), list.items.end(), is_wanted));
  }
  const auto it = std::find_if(list.items.begin(), list.items.end(), is_wanted);
  if (it == list.items.end()) {
    fail(fmt::format("{} is not in list", repr(wanted)));
  }
  return static_cast<std::int64_t>(it - list.items.begin());
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.is_string()) {
    return has_string_method(name);
  }
  if (object.dict() != nullptr) {
    return is_one_of(name, kDictMethods);
  }
  if (const List* list = object.list()) {
    if (list->kind == List::Kind::kList) {
      return is_one_of(name, kTupleMethods) || name == "copy";
    }
    return list->kind == List::Kind::kTuple && is_one_of(name, kTupleMethods);
  }
  return false;
}

bool is_unsafe_attribute(const Value& object, std::string_view name) {
  if (name.starts_with("__")) {
    return true;
  }
  if (object.dict() != nullptr) {
    return is_one_of(name, kDictChanges);
  }
  const List* list = object.list();
  return list != nullptr && list->kind == List::Kind::kList && is_one_of(name, kListChanges);
}

Value call_method(Interpreter& interpreter, const Value& object, std::string_view name,
                  const Args& args) {
  if (const std::string* text = object.string()) {
    return call_string_method(interpreter, *text, name, args);
  }
  return object.dict() != nullptr ? call_dict_method(interpreter, object, name, args)
                                  : call_list_method(interpreter, object, name, args);
}

}  // namespace fastfd::jinja
