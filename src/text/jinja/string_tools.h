#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd::jinja {

class Interpreter;

/// Python's str methods on UTF-8, shared by methods and filters. Views point into the argument.

/// `chars` nullptr: white space; else the set of characters in it.
std::string strip(std::string_view text, const std::string* chars, bool left, bool right);
/// str.split() and rsplit() without a separator.
std::vector<std::string_view> split_space(std::string_view text, std::int64_t max_split,
                                          bool from_right);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_split, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
/// Charges the result's size before it is made. count < 0: all.
std::string replace_all(const std::string& text, const std::string& from, const std::string& to,
                        std::int64_t count, Interpreter& interpreter);
/// str.title()
std::string title_case(std::string_view text);
/// str.capitalize()
std::string capitalized(std::string_view text);

}  // namespace fastfd::jinja
