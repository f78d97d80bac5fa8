#include "text/special_tokens.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fastfd/text/error.h"

namespace fastfd::text {

std::map<std::string, std::string> special_tokens_of(const nlohmann::ordered_json& config) {
  std::map<std::string, std::string> result;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it == config.end()) {
      continue;
    }
    const auto& text = it->is_object() && it->contains("content") ? it->at("content") : *it;
    if (text.is_string()) {
      result[name] = text.get<std::string>();
    } else if (!text.is_null()) {
      throw TextError(
          fmt::format("tokenizer_config.json: {} is neither a string nor an object with "
                      "content; use the file that belongs to the checkpoint",
                      name));
    }
  }
  return result;
}

}  // namespace fastfd::text
