#include "text/special_tokens.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

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

std::string read_text_file(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{512} << 20;
  std::error_code error;
  // Looked at before it is opened: opening a FIFO waits for a writer, perhaps for ever.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    throw TextError(
        fmt::format("{} is not a regular file; put the checkpoint's file there", path.string()));
  }
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (!error && num_bytes > kMostFileBytes) {
    throw TextError(fmt::format("{}: {} bytes are too many; check that it is the file it should be",
                                path.string(), num_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw TextError(fmt::format("cannot open {}: {}; check its permissions", path.string(),
                                std::strerror(errno)));
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
