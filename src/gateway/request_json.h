#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fastfd::gateway {

/// A request body, its objects' keys in the client's order: chat templates print objects.
using RequestJson = nlohmann::ordered_json;

/// Parses a request body in time O(n log n). Rejects what isn't a JSON object, naming the position,
/// and nesting deeper than any real request (which only eats memory). Of equal keys of an object
/// the last one counts, at the place of the first, as in Python.
RequestJson parse_json_object(std::string_view body);

/// `value` as JSON for an error message, cut when long.
std::string show_value(const RequestJson& value);

}  // namespace fastfd::gateway
