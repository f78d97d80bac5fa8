#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fastfd/config/cluster_config.h"

namespace fastfd::config {

/// What a cluster file must agree with. The model loader reads and checks config.json in full; here
/// only as much is read as makes the cluster file checkable as a whole.
struct ModelLimits {
  std::optional<std::uint32_t> max_positions;
  std::optional<std::uint32_t> num_experts;  ///< none: the FFNs are dense
};

/// Reads `dir`/config.json. On a folder that can't be a model, `problem` gets "what; remedy".
ModelLimits read_model_limits(const std::filesystem::path& dir, std::string& problem);

/// Makes `model.path` a folder and sets `model.served_name` if it is empty: a path that leads
/// nowhere but has the form of a model id is looked for in the Hugging Face cache, and served under
/// the id. Otherwise served_name is folder_name(). If the id can't be had, `problem` gets "what;
/// remedy".
void resolve_model(ModelConfig& model, std::string& problem);

/// Last component of the path, as /v1/models shows it.
std::string folder_name(const std::filesystem::path& dir);

}  // namespace fastfd::config
