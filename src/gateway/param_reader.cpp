#include "gateway/param_reader.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "gateway/api_error.h"

namespace fastfd::gateway {
using json = RequestJson;

void reject_value(const std::string& name, const json& value, const std::string& legal,
                  const char* code) {
  reject(name, fmt::format("{} is {}; it must be {}.", name, show_value(value), legal), code);
}

const json* ParamReader::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<double> ParamReader::number(const char* name, const NumberRange& range) const {
  const json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const auto legal = [&range] { return fmt::format("a number in {}", range.text); };
  if (!value->is_number()) {
    reject_value(name, *value, legal(), "invalid_type");
  }
  const auto number = value->get<double>();
  const bool below = range.low_open ? number <= range.low : number < range.low;
  const bool above = range.high_open ? number >= range.high : number > range.high;
  if (below || above) {
    reject_value(name, *value, legal());
  }
  return number;
}

std::optional<std::int64_t> ParamReader::integer(const char* name, std::int64_t low,
                                                 std::int64_t high) const {
  const json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const auto legal = [low, high] {
    if (high == std::numeric_limits<std::int64_t>::max()) {
      return low == std::numeric_limits<std::int64_t>::min()
                 ? std::string("a 64-bit integer")
                 : fmt::format("an integer of at least {}", low);
    }
    return fmt::format("an integer in [{}, {}]", low, high);
  };
  if (!value->is_number_integer()) {
    reject_value(name, *value, legal(), "invalid_type");
  }
  const bool too_large = value->is_number_unsigned() &&
                         value->get<std::uint64_t>() >
                             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (too_large || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high) {
    reject_value(name, *value, legal());
  }
  return value->get<std::int64_t>();
}

std::optional<bool> ParamReader::boolean(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    reject_value(name, *value, "true or false", "invalid_type");
  }
  return value->get<bool>();
}

std::optional<std::string> ParamReader::string(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    reject_value(name, *value, "a string", "invalid_type");
  }
  return value->get<std::string>();
}

std::vector<TokenId> read_token_ids(const json& list, const std::string& name,
                                    std::uint32_t vocab_size) {
  if (!list.is_array()) {
    reject_value(name, list, "a list of token ids", "invalid_type");
  }
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& value = list[i];
    const bool legal = value.is_number_unsigned()
                           ? value.get<std::uint64_t>() < vocab_size
                           : value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                                 value.get<std::int64_t>() < vocab_size;
    if (!legal) {
      reject(name,
             fmt::format("{}[{}] is {}; it must be a token id in [0, {}).", name, i,
                         show_value(value), vocab_size),
             value.is_number_integer() ? "invalid_value" : "invalid_type");
    }
    tokens.push_back(value.get<TokenId>());
  }
  return tokens;
}

}  // namespace fastfd::gateway
