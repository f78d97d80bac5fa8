#pragma once

#include <cstddef>
#include <string_view>

namespace fastfd::config {

/// Position of the first byte that begins no well-formed UTF-8 sequence (Unicode 15, table 3-7), or
/// npos.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace fastfd::config
