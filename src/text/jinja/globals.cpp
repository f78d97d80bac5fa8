#include <fmt/format.h>

#include <array>
#include <ctime>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"

namespace fastfd::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Interpreter& interpreter, const Args& args) {
  const BoundArgs bound(args, "range", {"start", "stop", "step"});
  const bool has_stop = bound.has(1);
  bound.required(0);
  const std::int64_t start = has_stop ? bound.integer(0, 0) : 0;
  const std::int64_t stop = has_stop ? bound.integer(1, 0) : bound.integer(0, 0);
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) {
    fail("range() arg 3 must not be zero");
  }
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      fail_limit(fmt::format("range too big: more than {} items", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  interpreter.charge(items.size() * sizeof(Value));
  return make_list(std::move(items));
}

/// dict(**kwargs), dict(mapping, **kwargs) and dict(pairs, **kwargs).
std::vector<std::pair<Value, Value>> dict_items(const Args& args, std::string_view function) {
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1) {
    fail(fmt::format("{}() expected at most 1 argument, got {}", function, args.positional.size()));
  }
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (const Dict* dict = source.dict()) {
      items = dict->items;
    } else {
      const ListPtr pairs = iterate(source);
      for (const Value& pair : pairs->items) {
        const ListPtr parts = iterate(pair);
        if (parts->items.size() != 2) {
          fail(fmt::format("{}() needs a sequence of pairs", function));
        }
        items.emplace_back(parts->items[0], parts->items[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keywords) {
    items.emplace_back(Value(name), value);
  }
  return items;
}

Value dict(Interpreter& /*interpreter*/, const Args& args) {
  return make_dict(dict_items(args, "dict"));
}

Value make_namespace(Interpreter& interpreter, const Args& args) {
  std::vector<std::pair<std::string, Value>> attributes;
  for (auto& [key, value] : dict_items(args, "namespace")) {
    attributes.emplace_back(to_string(key), std::move(value));
  }
  return interpreter.make_namespace(std::move(attributes));
}

Value raise_exception(Interpreter& /*interpreter*/, const Args& args) {
  const BoundArgs bound(args, "raise_exception", {"message"});
  throw Failure(ChatTemplateError::Kind::kRaised, to_string(bound.required(0)));
}

Value strftime_now(Interpreter& interpreter, const Args& args) {
  const BoundArgs bound(args, "strftime_now", {"format"});
  std::string format = bound.string(0);
  if (format.empty()) {
    return "";
  }
  const auto now = interpreter.now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(
                          now - std::chrono::system_clock::from_time_t(seconds))
                          .count();
  for (std::size_t at = format.find('%'); at != std::string::npos && at + 1 < format.size();
       at = format.find('%', at + 2)) {
    if (format[at + 1] == 'f') {  // Python's own: microseconds
      format.replace(at, 2, fmt::format("{:06}", micros));
    }
  }
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 1024> buffer{};
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  return std::string(buffer.data(), size);
}

using GlobalFunction = Value (*)(Interpreter&, const Args&);

Value wrap(std::string_view name, GlobalFunction function) {
  auto wrapped = std::make_shared<Function>();
  wrapped->name = name;
  wrapped->call = [function](Interpreter& interpreter, const Args& args) {
    return function(interpreter, args);
  };
  return FunctionPtr(std::move(wrapped));
}

}  // namespace

std::optional<Value> find_global(std::string_view name) {
  static const auto* globals = new std::unordered_map<std::string_view, Value>{
      {"range", wrap("range", range)},
      {"dict", wrap("dict", dict)},
      {"namespace", wrap("namespace", make_namespace)},
      {"raise_exception", wrap("raise_exception", raise_exception)},
      {"strftime_now", wrap("strftime_now", strftime_now)},
  };
  const auto it = globals->find(name);
  return it == globals->end() ? std::nullopt : std::optional<Value>(it->second);
}

}  // namespace fastfd::jinja
