#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/ids.h"
#include "gateway/request_json.h"

namespace fastfd::gateway {

/// Legal values of a number; `text` is how people write the interval: "(0, 1]".
struct NumberRange {
  double low;
  double high;
  bool low_open;
  bool high_open;
  const char* text;
};

/// Typed access to the members of a request. A missing member and null are the same: nullopt.
/// Anything of the wrong type or out of range is rejected with name, value and what is legal.
class ParamReader {
 public:
  /// `object` must outlive the reader.
  explicit ParamReader(const RequestJson& object) : object_(object) {}

  /// nullptr if missing or null.
  const RequestJson* find(const char* name) const;

  std::optional<double> number(const char* name, const NumberRange& range) const;
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) const;
  std::optional<bool> boolean(const char* name) const;
  std::optional<std::string> string(const char* name) const;

 private:
  const RequestJson& object_;
};

/// A list of token ids, each in [0, vocab_size). `name` is for messages.
std::vector<TokenId> read_token_ids(const RequestJson& list, const std::string& name,
                                    std::uint32_t vocab_size);

/// "x is 7; it must be ..." as a 400.
[[noreturn]] void reject_value(const std::string& name, const RequestJson& value,
                               const std::string& legal, const char* code = "invalid_value");

}  // namespace fastfd::gateway
