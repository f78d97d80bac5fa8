#include "text/json_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "fastfd/text/error.h"
#include "text/utf8.h"

namespace fastfd::text {

using nlohmann::json;

std::string shown_json(const json& value) {
  constexpr std::size_t kMostShown = 80;
  if (value.is_structured() && value.size() > kMostShown) {
    return fmt::format("an {} of {} elements", value.type_name(), value.size());
  }
  std::string shown = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (shown.size() > kMostShown) {
    shown = shown.substr(0, kMostShown) + "...";
  }
  return shown;
}

JsonFields::JsonFields(const json& value, std::string path)
    : json_(&value), path_(std::move(path)) {
  if (!value.is_object()) {
    throw TextError(fmt::format("{} is {}, not an object", path_.empty() ? "the file" : path_,
                                shown_json(value)));
  }
}

std::string JsonFields::full_key(const char* key) const {
  return path_.empty() ? key : fmt::format("{}.{}", path_, key);
}

void JsonFields::fail(const char* key, std::string_view expected) const {
  const json* value = find(key);
  if (value == nullptr) {
    throw TextError(fmt::format("{} is missing; it must be {}", full_key(key), expected));
  }
  throw TextError(fmt::format("{} is {}, not {}", full_key(key), shown_json(*value), expected));
}

const json* JsonFields::find(const char* key) const {
  const auto it = json_->find(key);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

const std::string& JsonFields::string(const char* key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_string()) {
    fail(key, "a string");
  }
  return value->get_ref<const std::string&>();
}

std::string JsonFields::string_or(const char* key, std::string_view fallback) const {
  return find(key) == nullptr ? std::string(fallback) : string(key);
}

bool JsonFields::boolean(const char* key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_boolean()) {
    fail(key, "true or false");
  }
  return value->get<bool>();
}

bool JsonFields::boolean_or(const char* key, bool fallback) const {
  return find(key) == nullptr ? fallback : boolean(key);
}

std::uint64_t JsonFields::count(const char* key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_number_unsigned()) {
    fail(key, "a whole number of at least 0");
  }
  return value->get<std::uint64_t>();
}

char32_t JsonFields::character(const char* key) const {
  const std::string& text = string(key);
  std::size_t pos = 0;
  const char32_t c = text.empty() ? 0 : next_code_point(text, pos);
  if (text.empty() || pos != text.size()) {
    fail(key, "a single character");
  }
  return c;
}

const json& JsonFields::array(const char* key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_array()) {
    fail(key, "a list");
  }
  return *value;
}

const json& JsonFields::object(const char* key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_object()) {
    fail(key, "an object");
  }
  return *value;
}

JsonFields JsonFields::element(const char* key, std::size_t index) const {
  return {array(key)[index], fmt::format("{}[{}]", full_key(key), index)};
}

JsonFields JsonFields::child(const char* key) const { return {object(key), full_key(key)}; }

}  // namespace fastfd::text
