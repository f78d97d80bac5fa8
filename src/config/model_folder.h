#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fastfd::config {

/// What a cluster file must agree with. The model loader reads and checks config.json in full; here
/// only as much is read as makes the cluster file checkable as a whole.
struct ModelLimits {
  std::optional<std::uint32_t> max_positions;
  std::optional<std::uint32_t> num_experts;  ///< none: the FFNs are dense
};

/// Reads `dir`/config.json. On a folder that can't be a model, `problem` gets "what; remedy".
ModelLimits read_model_limits(const std::filesystem::path& dir, std::string& problem);

/// Last component of the path, as /v1/models shows it.
std::string folder_name(const std::filesystem::path& dir);

}  // namespace fastfd::config
