#include "config/model_folder.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "config/model_cache.h"

namespace fastfd::config {
namespace {

constexpr std::uintmax_t kMostConfigBytes = std::uintmax_t{4} << 20;

std::optional<std::uint32_t> read_count(const nlohmann::json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end() || !at->is_number_unsigned()) {
    return std::nullopt;
  }
  const auto value = at->get<std::uint64_t>();
  return value == 0 || value > INT32_MAX ? std::nullopt
                                         : std::optional(static_cast<std::uint32_t>(value));
}

}  // namespace

ModelLimits read_model_limits(const std::filesystem::path& dir, std::string& problem) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    const bool exists = std::filesystem::exists(dir, error);
    const std::string shown = std::filesystem::absolute(dir, error).string();
    problem = exists ? fmt::format(
                           "{} is not a folder; give the folder that holds config.json and "
                           "the *.safetensors files",
                           shown)
                     : fmt::format(
                           "no folder {}; give the path of a Hugging Face model folder, "
                           "absolute or relative to where fastfd is started, or a model id "
                           "such as Qwen/Qwen3-30B-A3B",
                           shown);
    return {};
  }
  const auto file = dir / "config.json";
  const auto num_bytes = std::filesystem::file_size(file, error);
  if (error || !std::filesystem::is_regular_file(file, error)) {
    problem = fmt::format("{} has no config.json; give a Hugging Face model folder", dir.string());
    return {};
  }
  // An unreadable or malformed config.json is the model loader's to report, with all it knows.
  std::ifstream stream(file, std::ios::binary);  // a regular file, no FIFO to wait for
  if (num_bytes > kMostConfigBytes || !stream) {
    return {};
  }
  const auto config = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return {};
  }
  std::optional<std::uint32_t> num_experts;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    num_experts = num_experts ? num_experts : read_count(config, key);
  }
  return {read_count(config, "max_position_embeddings"), num_experts};
}

void resolve_model(ModelConfig& model, std::string& problem) {
  std::error_code error;
  const std::string named = model.path.string();
  if (!std::filesystem::exists(model.path, error) && is_model_id(named)) {
    const bool needs_weights = model.load_format != LoadFormat::kDummy;
    const auto snapshot = find_cached_model(named, needs_weights, problem);
    if (problem.empty()) {
      model.path = snapshot;
    }
    if (model.served_name.empty()) {
      model.served_name = named;
    }
  }
  if (model.served_name.empty()) {
    model.served_name = folder_name(model.path);
  }
}

std::string folder_name(const std::filesystem::path& dir) {
  std::error_code error;
  auto normal = std::filesystem::absolute(dir, error).lexically_normal();
  if (!normal.has_filename()) {
    normal = normal.parent_path();  // "models/atlas-moe/"
  }
  const std::string name = normal.filename().string();
  return name.empty() ? "model" : name;
}

}  // namespace fastfd::config
