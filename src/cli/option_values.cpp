#include "cli/option_values.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace fastfd::cli {
namespace {

/// The whole of `text` as a number; false: it is none, or doesn't fit.
template <typename T>
bool parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

CLI::Validator number(LowEnd kind, double low, double high) {
  return CLI::Validator(
      [kind, low, high](std::string& text) -> std::string {
        double value = 0;
        const bool legal = parse(text, value) && std::isfinite(value) &&
                           (kind == LowEnd::kFrom ? value >= low : value > low) && value <= high;
        return legal ? std::string()
                     : fmt::format("'{}' is not a number {} {} {} {}", text,
                                   kind == LowEnd::kFrom ? "from" : "above", low,
                                   kind == LowEnd::kFrom ? "to" : "and up to", high);
      },
      "");
}

CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        std::uint64_t value = 0;
        return parse(text, value) && value >= low && value <= high
                   ? std::string()
                   : fmt::format("'{}' is not a whole number from {} to {}", text, low, high);
      },
      "");
}

}  // namespace fastfd::cli
