#include "text/special_tokens.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
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
    if (it->is_string()) {
      result[name] = it->get<std::string>();
    } else if (it->is_object() && it->contains("content")) {
      result[name] = it->at("content").get<std::string>();
    }
  }
  return result;
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw TextError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    throw TextError(fmt::format("cannot read {}", path.string()));
  }
  return text;
}

nlohmann::ordered_json read_json_file(const std::filesystem::path& path) {
  try {
    return nlohmann::ordered_json::parse(read_text_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw TextError(fmt::format("{} is not valid JSON: {}", path.string(), error.what()));
  }
}

}  // namespace fastfd::text
