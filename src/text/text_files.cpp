#include "text/text_files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "fastfd/core/model_files.h"
#include "fastfd/text/error.h"

namespace fastfd::text {
namespace {

constexpr int kDeepestJson = 64;  // tokenizer.json is 8 deep or so

int deepest_nesting(std::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

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
    const int why = errno;
    throw TextError(
        fmt::format("cannot open {}: {}; {}", path.string(), std::strerror(why),
                    why == ENOENT ? "finish the download of the model" : "check its permissions"));
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    throw TextError(fmt::format("cannot read {}", path.string()));
  }
  if (is_git_lfs_pointer(text)) {
    throw TextError(fmt::format("{} {}", path.string(), kGitLfsRemedy));
  }
  return text;
}

template <typename Json>
Json parse_json(std::string_view text, std::string_view name) {
  if (deepest_nesting(text) > kDeepestJson) {
    throw TextError(
        fmt::format("{} is nested deeper than {} levels; fetch it again", name, kDeepestJson));
  }
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw TextError(fmt::format("{} is not valid JSON: {}", name, error.what()));
  }
}

template nlohmann::json parse_json(std::string_view, std::string_view);
template nlohmann::ordered_json parse_json(std::string_view, std::string_view);

nlohmann::ordered_json read_json_file(const std::filesystem::path& path) {
  return parse_json<nlohmann::ordered_json>(read_text_file(path), path.string());
}

}  // namespace fastfd::text
