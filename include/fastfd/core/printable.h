#pragma once

#include <string>
#include <string_view>

namespace fastfd {

/// `text` with its control characters written as "\x00", line breaks and tabs excepted. For error
/// messages, which quote files and servers: what() is a C string, so a NUL byte would cut it, and
/// an escape sequence would reach the terminal.
std::string printable(std::string_view text);

}  // namespace fastfd
