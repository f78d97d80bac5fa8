#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/loop.h"
#include "text/utf8.h"

namespace fastfd::jinja {

Value Value::undefined(std::string hint) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(hint))};
  return value;
}

bool Value::is_integer() const {
  return std::holds_alternative<std::int64_t>(data_) || std::holds_alternative<bool>(data_);
}

bool Value::is_number() const { return is_integer() || std::holds_alternative<double>(data_); }

const std::string* Value::string() const {
  const auto* pointer = get_if<StringPtr>();
  return pointer == nullptr ? nullptr : pointer->get();
}

const List* Value::list() const {
  const auto* pointer = get_if<ListPtr>();
  return pointer == nullptr ? nullptr : pointer->get();
}

const Dict* Value::dict() const {
  const auto* pointer = get_if<DictPtr>();
  return pointer == nullptr ? nullptr : pointer->get();
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* i = get_if<std::int64_t>()) {
    return *i;
  }
  if (const auto* b = get_if<bool>()) {
    return *b ? 1 : 0;
  }
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* d = get_if<double>()) {
    return *d;
  }
  if (const auto i = integer()) {
    return static_cast<double>(*i);
  }
  return std::nullopt;
}

std::uint32_t Value::depth() const {
  if (const List* l = list()) {
    return l->depth;
  }
  if (const Dict* d = dict()) {
    return d->depth;
  }
  if (const auto* f = get_if<FunctionPtr>()) {
    return (*f)->depth;
  }
  if (const auto* loop = get_if<LoopPtr>()) {
    return (*loop)->depth();
  }
  return 0;
}

namespace {

std::uint32_t checked_depth(std::uint32_t depth) {
  if (depth > kMaxValueDepth) {
    fail_limit(fmt::format("lists and dicts are nested deeper than {}", kMaxValueDepth));
  }
  return depth;
}

void require_hashable(const Value& key) {
  if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == List::Kind::kList)) {
    fail(fmt::format("unhashable type: '{}'", type_name(key)));
  }
}

}  // namespace

Value make_list(std::vector<Value> items, List::Kind kind) {
  std::uint32_t depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
  }
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  list->kind = kind;
  list->depth = checked_depth(depth + 1);
  return ListPtr(std::move(list));
}

Value make_dict(std::vector<std::pair<Value, Value>> items) {
  auto dict = std::make_shared<Dict>();
  std::uint32_t depth = 0;
  dict->items.reserve(items.size());
  for (auto& item : items) {
    Value& key = item.first;
    Value& value = item.second;
    require_hashable(key);
    depth = std::max({depth, key.depth(), value.depth()});
    if (const Value* existing = dict->find(key)) {
      *const_cast<Value*>(existing) = std::move(value);
      continue;
    }
    dict->items.emplace_back(std::move(key), std::move(value));
    // The string lives behind a shared pointer, so the view outlives moves of the vector.
    if (const std::string* text = dict->items.back().first.string()) {
      dict->index.emplace(*text, dict->items.size() - 1);
    }
  }
  dict->depth = checked_depth(depth + 1);
  return DictPtr(std::move(dict));
}

const Value* Dict::find(std::string_view key) const {
  const auto it = index.find(key);
  return it == index.end() ? nullptr : &items[it->second].second;
}

const Value* Dict::find(const Value& key) const {
  if (const std::string* text = key.string()) {
    return find(std::string_view(*text));
  }
  for (const auto& [candidate, value] : items) {
    if (!candidate.is_string() && equals(candidate, key)) {
      return &value;
    }
  }
  return nullptr;
}

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : attributes) {
    if (key == name) {
      return &value;
    }
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  if (Value* existing = find(name)) {
    *existing = std::move(value);
  } else {
    attributes.emplace_back(std::string(name), std::move(value));
  }
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) {
    return "Undefined";
  }
  if (value.is_none()) {
    return "NoneType";
  }
  if (value.get_if<bool>() != nullptr) {
    return "bool";
  }
  if (value.is_integer()) {
    return "int";
  }
  if (value.is_number()) {
    return "float";
  }
  if (value.is_string()) {
    return "str";
  }
  if (const List* list = value.list()) {
    switch (list->kind) {
      case List::Kind::kList:
        return "list";
      case List::Kind::kTuple:
        return "tuple";
      case List::Kind::kGenerator:
        return "generator";
      case List::Kind::kDictKeys:
        return "dict_keys";
      case List::Kind::kDictValues:
        return "dict_values";
      case List::Kind::kDictItems:
        return "dict_items";
    }
  }
  if (value.dict() != nullptr) {
    return "dict";
  }
  if (value.get_if<NamespacePtr>() != nullptr) {
    return "Namespace";
  }
  if (value.get_if<LoopPtr>() != nullptr) {
    return "LoopContext";
  }
  return (*value.get_if<FunctionPtr>())->is_macro ? "Macro" : "function";
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) {
    return false;
  }
  if (const auto number = value.number()) {
    return *number != 0.0;
  }
  if (const std::string* text = value.string()) {
    return !text->empty();
  }
  if (const List* list = value.list()) {
    return list->kind == List::Kind::kGenerator || !list->items.empty();
  }
  if (const Dict* dict = value.dict()) {
    return !dict->items.empty();
  }
  return true;
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) {
      return a.integer() == b.integer();
    }
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    return *a.string() == *b.string();
  }
  if (a.is_none() || a.is_undefined()) {
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  }
  const List* list_a = a.list();
  const List* list_b = b.list();
  if (list_a != nullptr && list_b != nullptr) {
    if (list_a == list_b) {
      return true;
    }
    return list_a->kind == list_b->kind && list_a->kind != List::Kind::kGenerator &&
           std::equal(list_a->items.begin(), list_a->items.end(), list_b->items.begin(),
                      list_b->items.end(), equals);
  }
  const Dict* dict_a = a.dict();
  const Dict* dict_b = b.dict();
  if (dict_a != nullptr && dict_b != nullptr) {
    return dict_a == dict_b ||
           (dict_a->items.size() == dict_b->items.size() &&
            std::all_of(dict_a->items.begin(), dict_a->items.end(), [&](const auto& item) {
              const Value* other = dict_b->find(item.first);
              return other != nullptr && equals(item.second, *other);
            }));
  }
  if (const auto* ns = a.get_if<NamespacePtr>()) {
    return b.get_if<NamespacePtr>() != nullptr && *ns == *b.get_if<NamespacePtr>();
  }
  if (const auto* function = a.get_if<FunctionPtr>()) {
    return b.get_if<FunctionPtr>() != nullptr && *function == *b.get_if<FunctionPtr>();
  }
  return false;
}

int compare(const Value& a, const Value& b, std::string_view op) {
  require_defined(a);
  require_defined(b);
  const auto sign = [](auto x, auto y) { return x < y ? -1 : static_cast<int>(y < x); };
  if (a.is_integer() && b.is_integer()) {
    return sign(*a.integer(), *b.integer());
  }
  if (a.is_number() && b.is_number()) {
    return sign(*a.number(), *b.number());
  }
  if (a.is_string() && b.is_string()) {
    return sign(*a.string(), *b.string());  // byte order of UTF-8 is code point order
  }
  const List* list_a = a.list();
  const List* list_b = b.list();
  if (list_a != nullptr && list_b != nullptr && list_a->kind == list_b->kind) {
    const std::size_t common = std::min(list_a->items.size(), list_b->items.size());
    for (std::size_t i = 0; i < common; ++i) {
      if (!equals(list_a->items[i], list_b->items[i])) {
        return compare(list_a->items[i], list_b->items[i], op);
      }
    }
    return sign(list_a->items.size(), list_b->items.size());
  }
  fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, type_name(a),
                   type_name(b)));
}

bool contains(const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    if (const std::string* part = item.string()) {
      return text->find(*part) != std::string::npos;
    }
    require_defined(item);
    fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
  }
  if (const Dict* dict = container.dict()) {
    require_hashable(item);
    return dict->find(item) != nullptr;
  }
  const ListPtr list = iterate(container);
  return std::any_of(list->items.begin(), list->items.end(),
                     [&](const Value& candidate) { return equals(candidate, item); });
}

std::int64_t length(const Value& value) {
  if (const std::string* text = value.string()) {
    return static_cast<std::int64_t>(std::count_if(text->begin(), text->end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    }));
  }
  if (const List* list = value.list(); list != nullptr && list->kind != List::Kind::kGenerator) {
    return static_cast<std::int64_t>(list->items.size());
  }
  if (const Dict* dict = value.dict()) {
    return static_cast<std::int64_t>(dict->items.size());
  }
  if (value.is_undefined()) {
    return 0;
  }
  if (const auto* loop = value.get_if<LoopPtr>()) {
    return static_cast<std::int64_t>((*loop)->length());
  }
  fail(fmt::format("object of type '{}' has no len()", type_name(value)));
}

ListPtr iterate(const Value& value) {
  static const ListPtr kEmpty = std::make_shared<const List>();
  if (const auto* list = value.get_if<ListPtr>()) {
    if ((*list)->kind == List::Kind::kGenerator && std::exchange((*list)->consumed, true)) {
      return kEmpty;
    }
    return *list;
  }
  auto result = std::make_shared<List>();
  if (const std::string* text = value.string()) {
    for (std::size_t pos = 0; pos < text->size();) {
      const std::size_t begin = pos;
      text::next_code_point(*text, pos);
      result->items.emplace_back(std::string_view(*text).substr(begin, pos - begin));
    }
    return result;
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, unused] : dict->items) {
      result->items.push_back(key);
    }
    return result;
  }
  if (value.is_undefined()) {
    return kEmpty;
  }
  fail(fmt::format("'{}' object is not iterable", type_name(value)));
}

void require_defined(const Value& value) {
  if (const auto* undefined = value.get_if<Undefined>()) {
    fail(*undefined->hint);
  }
}

}  // namespace fastfd::jinja
