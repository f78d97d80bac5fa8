#include "gateway/param_reader.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "gateway/api_error.h"
#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 64;
constexpr std::size_t kMaxShownBytes = 80;

/// Looks for nesting beyond the limit without building anything.
bool nests_too_deep(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) {
        return true;
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

/// "line 3, column 14 (byte 60)" of a 1-based byte position.
std::string position_text(std::string_view body, std::size_t byte) {
  std::size_t line = 1;
  std::size_t line_start = 0;
  const std::size_t end = byte == 0 ? 0 : std::min(byte - 1, body.size());
  for (std::size_t i = 0; i < end; ++i) {
    if (body[i] == '\n') {
      ++line;
      line_start = i + 1;
    }
  }
  return fmt::format("line {}, column {} (byte {})", line, end - line_start + 1, byte);
}

/// What the JSON library found, without its own name, number and position.
std::string parser_words(const json::exception& error) {
  const std::string_view what = error.what();
  const auto at = what.find("syntax error");
  std::string words(at == std::string_view::npos ? what.substr(what.find("] ") + 2)
                                                 : what.substr(at));
  if (!is_utf8(words)) {  // it quotes the last bytes it read
    words = "it contains bytes that are not UTF-8";
  }
  return words;
}

}  // namespace

json parse_json_object(std::string_view body) {
  if (nests_too_deep(body)) {
    reject("", fmt::format("The request body nests deeper than {} levels.", kMaxNesting),
           "invalid_json");
  }
  json object;
  try {
    object = json::parse(body);
  } catch (const json::parse_error& error) {
    reject("",
           fmt::format("The request body is not valid JSON at {}: {}.",
                       position_text(body, error.byte), parser_words(error)),
           "invalid_json");
  } catch (const json::exception& error) {
    reject("", fmt::format("The request body is not valid JSON: {}.", parser_words(error)),
           "invalid_json");
  }
  if (!object.is_object()) {
    reject("", fmt::format("The request body must be a JSON object, not {}.", object.type_name()),
           "invalid_json");
  }
  return object;
}

std::string show_value(const json& value) {
  // Large arrays are not rendered just to be cut.
  if (value.is_structured() && value.size() > kMaxShownBytes) {
    return fmt::format("an {} of {} elements", value.type_name(), value.size());
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) {
    std::size_t cut = kMaxShownBytes;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) {
      --cut;
    }
    text.resize(cut);
    text += "...";
  }
  return text;
}

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
