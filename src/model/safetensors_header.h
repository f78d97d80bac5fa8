#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fastfd/model/safetensors.h"

namespace fastfd::model {

/// The reference implementation's limit, which keeps a damaged length from being believed.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
inline constexpr std::uint64_t kLengthBytes = 8;

/// Parses and validates the JSON header of a file of `file_bytes` bytes; throws ModelError.
/// `file` is named in errors only. Results are in order of their offsets.
std::vector<TensorInfo> parse_safetensors_header(const std::string& header,
                                                 std::uint64_t file_bytes,
                                                 const std::filesystem::path& file);

/// Quotes a name from a file for an error message: bounded, without control characters.
std::string quote_name(const std::string& name);

}  // namespace fastfd::model
