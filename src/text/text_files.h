#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fastfd::text {

/// Whole file as bytes; throws TextError naming it.
std::string read_text_file(const std::filesystem::path& path);

/// Parses JSON that came from `name`. Throws TextError naming it and the place of the error;
/// nesting that no such file has is one, because what reads the values calls itself. For
/// nlohmann::json and ordered_json.
template <typename Json>
Json parse_json(std::string_view text, std::string_view name);

/// Reads and parses a JSON file; throws TextError as the two above.
nlohmann::ordered_json read_json_file(const std::filesystem::path& path);

}  // namespace fastfd::text
