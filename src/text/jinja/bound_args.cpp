#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"

namespace fastfd::jinja {

BoundArgs::BoundArgs(const Args& args, std::string_view function,
                     std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    fail(fmt::format("{}() takes at most {} arguments, got {}", function_, names_.size(),
                     args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = &args.positional[i];
  }
  for (const auto& [name, value] : args.keywords) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) {
      fail(fmt::format("{}() got an unexpected keyword argument '{}'", function_, name));
    }
    const Value*& slot = values_[static_cast<std::size_t>(it - names_.begin())];
    if (slot != nullptr) {
      fail(fmt::format("{}() got multiple values for argument '{}'", function_, name));
    }
    slot = &value;
  }
}

const Value& BoundArgs::required(std::size_t i) const {
  if (values_[i] == nullptr) {
    fail(fmt::format("{}() missing required argument '{}'", function_, names_[i]));
  }
  return *values_[i];
}

Value BoundArgs::get(std::size_t i, const Value& fallback) const {
  return values_[i] == nullptr ? fallback : *values_[i];
}

bool BoundArgs::flag(std::size_t i, bool fallback) const {
  return values_[i] == nullptr ? fallback : is_true(*values_[i]);
}

std::int64_t BoundArgs::integer(std::size_t i, std::int64_t fallback) const {
  if (values_[i] == nullptr || values_[i]->is_none()) {
    return fallback;
  }
  require_defined(*values_[i]);
  if (const auto value = values_[i]->integer()) {
    return *value;
  }
  fail(fmt::format("{}() argument '{}' must be an integer, not '{}'", function_, names_[i],
                   type_name(*values_[i])));
}

const std::string& BoundArgs::string(std::size_t i) const {
  const Value& value = required(i);
  require_defined(value);
  if (const std::string* text = value.string()) {
    return *text;
  }
  fail(fmt::format("{}() argument '{}' must be str, not {}", function_, names_[i],
                   type_name(value)));
}

}  // namespace fastfd::jinja
