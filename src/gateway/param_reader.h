#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::gateway {

/// Legal values of a number; `text` is how people write the interval: "(0, 1]".
struct NumberRange {
  double low;
  double high;
  bool low_open;
  bool high_open;
  const char* text;
};

/// Parses a request body. Rejects what isn't a JSON object, naming the position, and nesting deeper
/// than any real request (which only eats memory).
nlohmann::json parse_json_object(std::string_view body);

/// `value` as JSON for an error message, cut when long.
std::string show_value(const nlohmann::json& value);

/// Typed access to the members of a request. A missing member and null are the same: nullopt.
/// Anything of the wrong type or out of range is rejected with name, value and what is legal.
class ParamReader {
 public:
  /// `object` must outlive the reader.
  explicit ParamReader(const nlohmann::json& object) : object_(object) {}

  /// nullptr if missing or null.
  const nlohmann::json* find(const char* name) const;

  std::optional<double> number(const char* name, const NumberRange& range) const;
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) const;
  std::optional<bool> boolean(const char* name) const;
  std::optional<std::string> string(const char* name) const;

 private:
  const nlohmann::json& object_;
};

/// A list of token ids, each in [0, vocab_size). `name` is for messages.
std::vector<TokenId> read_token_ids(const nlohmann::json& list, const std::string& name,
                                    std::uint32_t vocab_size);

/// "x is 7; it must be ..." as a 400.
[[noreturn]] void reject_value(const std::string& name, const nlohmann::json& value,
                               const std::string& legal, const char* code = "invalid_value");

}  // namespace fastfd::gateway
