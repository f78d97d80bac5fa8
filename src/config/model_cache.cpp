#include "config/model_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "fastfd/core/model_files.h"

namespace fastfd::config {
namespace {

namespace fs = std::filesystem;

/// A variable that is set and not empty, `~` at its begin as the home folder.
std::optional<fs::path> folder_of_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  const std::string_view text = value;
  const char* home = std::getenv("HOME");
  if (home != nullptr && text == "~") {
    return fs::path(home);
  }
  if (home != nullptr && text.starts_with("~/")) {
    return fs::path(home) / text.substr(2);
  }
  return fs::path(text);
}

/// The text of a regular file of at most `most_bytes`; nullopt for anything else, which is not
/// opened: a FIFO would be waited for.
std::optional<std::string> read_small_file(const fs::path& file, std::uintmax_t most_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > most_bytes || error) {
    return std::nullopt;
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    return std::nullopt;
  }
  return std::string{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// A file of the snapshot that should be there and isn't; empty if nothing is missing. Snapshots
/// are links into a folder of blobs: a link that leads nowhere is a missing file too.
std::string missing_file(const fs::path& snapshot, bool needs_weights) {
  constexpr std::uintmax_t kMostIndexBytes = std::uintmax_t{64} << 20;
  constexpr const char* kIndex = "model.safetensors.index.json";
  constexpr const char* kSingle = "model.safetensors";
  std::error_code error;
  const auto is_there = [&](const std::string& name) {
    return fs::is_regular_file(snapshot / name, error);
  };
  if (!is_there("config.json")) {
    return "config.json";
  }
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    if (has_entry(snapshot / name) && !is_there(name)) {
      return name;  // a model may be without it, but this one is not
    }
  }
  if (!needs_weights || is_there(kSingle)) {
    return {};
  }
  if (!is_there(kIndex)) {
    return kSingle;
  }
  const auto text = read_small_file(snapshot / kIndex, kMostIndexBytes);
  const auto index = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    return {};  // the model loader's to report
  }
  std::set<std::string> shards;
  for (const auto& shard : *map) {
    if (shard.is_string()) {
      shards.insert(shard.get<std::string>());
    }
  }
  const auto missing = std::find_if_not(shards.begin(), shards.end(), is_there);
  return missing == shards.end() ? std::string() : *missing;
}

bool is_commit(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
}

}  // namespace

fs::path hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto cache = folder_of_variable(name)) {
      return *cache;
    }
  }
  if (const auto home = folder_of_variable("HF_HOME")) {
    return *home / "hub";
  }
  if (const auto cache = folder_of_variable("XDG_CACHE_HOME")) {
    return *cache / "huggingface" / "hub";
  }
  const auto home = folder_of_variable("HOME");
  return home ? *home / ".cache" / "huggingface" / "hub" : fs::path();
}

bool is_model_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto is_name = [](std::string_view name) {
    return !name.empty() && name.front() != '.' && name.front() != '-' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
           });
  };
  return slash != std::string_view::npos && is_name(text.substr(0, slash)) &&
         is_name(text.substr(slash + 1));
}

fs::path find_cached_model(const std::string& model_id, bool needs_weights, std::string& problem) {
  const fs::path cache = hub_cache_folder();
  std::string name = model_id;
  name.replace(name.find('/'), 1, "--");
  const fs::path repository = cache / ("models--" + name);
  const std::string download = fmt::format("`hf download {}`", model_id);
  std::error_code error;
  const bool is_cached = !cache.empty() && fs::is_directory(repository, error);
  if (!is_cached && fs::is_directory(model_id.substr(0, model_id.find('/')), error)) {
    problem = fmt::format("no folder {}; give the path of a Hugging Face model folder", model_id);
    return {};  // a path in the working directory was meant, not an organisation's model
  }
  if (!is_cached) {
    problem = fmt::format(
        "no folder {0}, and the Hugging Face cache{1} has no such model; download it with {2}, or "
        "give the path of a model folder",
        model_id, cache.empty() ? "" : fmt::format(" {}", cache.string()), download);
    return {};
  }
  constexpr std::uintmax_t kMostRefBytes = 256;
  std::string commit = read_small_file(repository / "refs" / "main", kMostRefBytes).value_or("");
  commit.erase(std::find_if(commit.begin(), commit.end(),
                            [](unsigned char c) { return std::isspace(c) != 0; }),
               commit.end());
  fs::path snapshot = repository / "snapshots" / commit;
  if (!is_commit(commit) || !fs::is_directory(snapshot, error)) {
    problem = fmt::format(
        "{} is in the Hugging Face cache, but not as its main revision ({}); download it with {}, "
        "or give the path of a snapshot",
        model_id, (repository / "refs" / "main").string(), download);
    return {};
  }
  const std::string missing = missing_file(snapshot, needs_weights);
  if (!missing.empty()) {
    problem =
        fmt::format("{} is incomplete in the Hugging Face cache: {} is missing; finish with {}",
                    model_id, (snapshot / missing).string(), download);
    return {};
  }
  return snapshot;
}

}  // namespace fastfd::config
