#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

using I = Interpreter;
using V = const Value&;
using A = const Args&;

Value generator(std::vector<Value> items) {
  return make_list(std::move(items), List::Kind::kGenerator);
}

Value folded(const Value& value, bool case_sensitive) {
  const std::string* text = value.string();
  return text == nullptr || case_sensitive ? value : Value(text::to_lower(*text));
}

/// `a.b.0` of the attribute arguments; `fallback` replaces what is undefined on the way.
class AttributePath {
 public:
  AttributePath(I& interpreter, const Value& path, const Value* fallback = nullptr)
      : interpreter_(interpreter), fallback_(fallback) {
    if (path.is_none()) {
      return;
    }
    const std::string* text = path.string();
    if (text == nullptr) {
      parts_.push_back(path);
      return;
    }
    for (std::size_t begin = 0; begin <= text->size();) {
      const std::size_t end = std::min(text->find('.', begin), text->size());
      const std::string part = text->substr(begin, end - begin);
      std::int64_t index = 0;
      const auto [last, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool is_index = error == std::errc() && last == part.data() + part.size() && index >= 0;
      parts_.push_back(is_index ? Value(index) : Value(part));
      begin = end + 1;
    }
  }

  Value of(Value item) const {
    for (const Value& part : parts_) {
      item = interpreter_.item(item, part);
      if (item.is_undefined() && fallback_ != nullptr) {
        item = *fallback_;
      }
    }
    return item;
  }

 private:
  I& interpreter_;
  const Value* fallback_;
  std::vector<Value> parts_;
};

Value first(I&, V input, A args) {
  const BoundArgs bound(args, "first", {});
  const ListPtr items = iterate(input);
  return items->items.empty() ? Value::undefined("No first item, sequence was empty.")
                              : items->items.front();
}

Value last(I&, V input, A args) {
  const BoundArgs bound(args, "last", {});
  const ListPtr items = iterate(input);
  return items->items.empty() ? Value::undefined("No last item, sequence was empty.")
                              : items->items.back();
}

Value list_filter(I& i, V input, A args) {
  const BoundArgs bound(args, "list", {});
  const ListPtr items = iterate(input);
  i.charge(items->items.size() * sizeof(Value));
  return make_list(items->items);
}

Value reverse(I&, V input, A args) {
  const BoundArgs bound(args, "reverse", {});
  std::vector<Value> items = iterate(input)->items;
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) {
    return generator(std::move(items));
  }
  std::string text;
  for (const Value& item : items) {
    text += *item.string();
  }
  return text;
}

Value items_filter(I& i, V input, A args) {
  const BoundArgs bound(args, "items", {});
  if (input.is_undefined()) {
    return generator({});
  }
  if (input.dict() == nullptr) {
    fail("Can only get item pairs from a mapping.");
  }
  return generator(call_method(i, input, "items", {}).list()->items);
}

Value join(I& i, V input, A args) {
  const BoundArgs bound(args, "join", {"d", "attribute"});
  const std::string separator = to_string(bound.get(0, Value("")));
  const AttributePath path(i, bound.get(1, Value()));
  std::string text;
  bool is_first = true;
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    if (!is_first) {
      text += separator;
    }
    is_first = false;
    const std::size_t before = text.size();
    append_string(text, path.of(item));
    i.charge(text.size() - before + separator.size());
    i.require_bytes(text.size());
  }
  return text;
}

Value map(I& i, V input, A args) {
  std::vector<Value> result;
  if (!is_true(input)) {
    return generator({});
  }
  if (args.positional.empty()) {
    const BoundArgs bound(args, "map", {"attribute", "default"});
    const Value fallback = bound.get(1, Value());
    const AttributePath path(i, bound.required(0), fallback.is_none() ? nullptr : &fallback);
    const ListPtr items = iterate(input);
    for (const Value& item : items->items) {
      i.charge(0);
      result.push_back(path.of(item));
    }
    return generator(std::move(result));
  }
  const Args rest{{args.positional.begin() + 1, args.positional.end()}, args.keywords};
  const std::string name = to_string(args.positional[0]);
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    result.push_back(i.call_filter(name, item, rest));
  }
  return generator(std::move(result));
}

Value select_items(I& i, V input, A args, bool by_attribute, bool wanted) {
  std::vector<Value> result;
  if (!is_true(input)) {
    return generator({});
  }
  const std::size_t num_fixed = by_attribute ? 1 : 0;
  if (args.positional.size() < num_fixed) {
    fail("missing parameter for attribute name");
  }
  const AttributePath path(i, by_attribute ? args.positional[0] : Value());
  const bool has_test = args.positional.size() > num_fixed;
  const std::string name = has_test ? to_string(args.positional[num_fixed]) : std::string();
  Args rest;
  if (has_test) {
    rest = {{args.positional.begin() + static_cast<std::ptrdiff_t>(num_fixed) + 1,
             args.positional.end()},
            args.keywords};
  }
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    i.charge(0);
    const Value value = path.of(item);
    const bool holds = has_test ? i.call_test(name, value, rest) : is_true(value);
    if (holds == wanted) {
      result.push_back(item);
    }
  }
  return generator(std::move(result));
}

Value select(I& i, V input, A args) { return select_items(i, input, args, false, true); }
Value reject(I& i, V input, A args) { return select_items(i, input, args, false, false); }
Value selectattr(I& i, V input, A args) { return select_items(i, input, args, true, true); }
Value rejectattr(I& i, V input, A args) { return select_items(i, input, args, true, false); }

/// Stable, as sorted() is; with reverse equal items keep their order too.
std::vector<Value> sorted(I& i, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  i.charge(keyed.size() * sizeof(Value) * 4);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    i.charge(0);
    return reverse ? compare(b.first, a.first, "<") < 0 : compare(a.first, b.first, "<") < 0;
  });
  std::vector<Value> result;
  result.reserve(keyed.size());
  for (auto& [key, item] : keyed) {
    result.push_back(std::move(item));
  }
  return result;
}

Value sort(I& i, V input, A args) {
  const BoundArgs bound(args, "sort", {"reverse", "case_sensitive", "attribute"});
  const Value attribute = bound.get(2, Value());
  std::vector<AttributePath> paths;
  if (const std::string* text = attribute.string()) {
    for (std::size_t begin = 0; begin <= text->size();) {
      const std::size_t end = std::min(text->find(',', begin), text->size());
      paths.emplace_back(i, Value(text->substr(begin, end - begin)));
      begin = end + 1;
    }
  } else {
    paths.emplace_back(i, attribute);
  }
  std::vector<std::pair<Value, Value>> keyed;
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    std::vector<Value> keys;
    keys.reserve(paths.size());
    for (const AttributePath& path : paths) {
      keys.push_back(folded(path.of(item), bound.flag(1, false)));
    }
    keyed.emplace_back(make_list(std::move(keys)), item);
  }
  return make_list(sorted(i, std::move(keyed), bound.flag(0, false)));
}

Value dictsort(I& i, V input, A args) {
  const BoundArgs bound(args, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.string(1) : "key";
  require_defined(input);
  if (input.dict() == nullptr || (by != "key" && by != "value")) {
    fail("dictsort needs a mapping and by \"key\" or \"value\"");
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict()->items) {
    keyed.emplace_back(folded(by == "key" ? key : value, bound.flag(0, false)),
                       make_list({key, value}, List::Kind::kTuple));
  }
  return make_list(sorted(i, std::move(keyed), bound.flag(2, false)));
}

Value unique(I& i, V input, A args) {
  const BoundArgs bound(args, "unique", {"case_sensitive", "attribute"});
  const AttributePath path(i, bound.get(1, Value()));
  std::vector<Value> seen;
  std::vector<Value> result;
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    Value key = folded(path.of(item), bound.flag(0, false));
    i.charge(seen.size() * sizeof(Value));
    if (std::none_of(seen.begin(), seen.end(), [&](V other) { return equals(other, key); })) {
      seen.push_back(std::move(key));
      result.push_back(item);
    }
  }
  return generator(std::move(result));
}

Value extreme(I& i, V input, A args, bool largest) {
  const BoundArgs bound(args, largest ? "max" : "min", {"case_sensitive", "attribute"});
  const AttributePath path(i, bound.get(1, Value()));
  const ListPtr items = iterate(input);
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    Value key = folded(path.of(item), bound.flag(0, false));
    i.charge(0);
    const bool better = best == nullptr || (largest ? compare(best_key, key, "<") < 0
                                                    : compare(key, best_key, "<") < 0);
    if (better) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return best != nullptr ? *best : Value::undefined("No aggregated item, sequence was empty.");
}

Value min_filter(I& i, V input, A args) { return extreme(i, input, args, false); }
Value max_filter(I& i, V input, A args) { return extreme(i, input, args, true); }

Value sum(I& i, V input, A args) {
  const BoundArgs bound(args, "sum", {"attribute", "start"});
  const AttributePath path(i, bound.get(0, Value()));
  Value total = bound.get(1, Value(std::int64_t{0}));
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    total = binary(i, BinaryOp::kAdd, total, path.of(item));
  }
  return total;
}

Value batch(I& i, V input, A args) {
  const BoundArgs bound(args, "batch", {"linecount", "fill_with"});
  bound.required(0);
  const std::int64_t size = bound.integer(0, 1);
  const Value fill = bound.get(1, Value());
  const ListPtr items = iterate(input);
  std::vector<Value> result;
  std::vector<Value> row;
  for (const Value& item : items->items) {
    if (static_cast<std::int64_t>(row.size()) == size) {
      result.push_back(make_list(std::exchange(row, {})));
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    while (!fill.is_none() && static_cast<std::int64_t>(row.size()) < size) {
      i.charge(sizeof(Value));
      row.push_back(fill);
    }
    result.push_back(make_list(std::move(row)));
  }
  return generator(std::move(result));
}

Value groupby(I& i, V input, A args) {
  const BoundArgs bound(args, "groupby", {"attribute", "default", "case_sensitive"});
  const Value fallback = bound.get(1, Value());
  const AttributePath path(i, bound.required(0), fallback.is_none() ? nullptr : &fallback);
  const bool case_sensitive = bound.flag(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  const ListPtr items = iterate(input);
  for (const Value& item : items->items) {
    keyed.emplace_back(folded(path.of(item), case_sensitive), item);
  }
  const std::vector<Value> order = sorted(i, std::move(keyed), false);
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < order.size();) {
    const Value key = path.of(order[begin]);
    std::size_t end = begin;
    while (end < order.size() &&
           equals(folded(path.of(order[end]), case_sensitive), folded(key, case_sensitive))) {
      ++end;
    }
    Value members = make_list({order.begin() + static_cast<std::ptrdiff_t>(begin),
                               order.begin() + static_cast<std::ptrdiff_t>(end)});
    groups.push_back(make_list({key, std::move(members)}, List::Kind::kTuple));
    begin = end;
  }
  return make_list(std::move(groups));
}

const std::unordered_map<std::string_view, FilterFunction>& table() {
  static const auto* filters = new std::unordered_map<std::string_view, FilterFunction>{
      {"first", first},
      {"last", last},
      {"list", list_filter},
      {"reverse", reverse},
      {"items", items_filter},
      {"join", join},
      {"map", map},
      {"select", select},
      {"reject", reject},
      {"selectattr", selectattr},
      {"rejectattr", rejectattr},
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"min", min_filter},
      {"max", max_filter},
      {"sum", sum},
      {"batch", batch},
      {"groupby", groupby},
  };
  return *filters;
}

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}

}  // namespace fastfd::jinja
