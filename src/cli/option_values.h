#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fastfd::cli {

// What an option takes, as CLI11 validators whose errors are short and name what is legal. CLI11's
// own let NaN pass, and make 2^64 - 1 of an unsigned -1.

/// A finite decimal number from `low` to `high`; kAbove: more than `low`.
enum class LowEnd : std::uint8_t { kFrom, kAbove };
CLI::Validator number(LowEnd kind, double low, double high);

/// A whole decimal number from `low` to `high`.
CLI::Validator whole_number(std::uint64_t low, std::uint64_t high);

/// One of some words, each of which stands for a value of an enumeration.
template <typename Enum>
CLI::Validator one_of(std::vector<std::pair<std::string, Enum>> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) -> std::string {
        std::string legal;
        for (const auto& [word, value] : words) {
          if (word == text) {
            text = std::to_string(static_cast<int>(value));
            return {};
          }
          legal += (legal.empty() ? "" : ", ") + word;
        }
        return fmt::format("'{}' is not one of {}", text, legal);
      },
      "");
}

}  // namespace fastfd::cli
