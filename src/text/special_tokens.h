#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fastfd::text {

/// "bos_token", "eos_token", ... of tokenizer_config.json with their text. A token may be written
/// as a string or as an object with `content`; null and absent ones are left out.
std::map<std::string, std::string> special_tokens_of(const nlohmann::ordered_json& config);

}  // namespace fastfd::text
