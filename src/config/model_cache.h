#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fastfd::config {

/// Where Hugging Face tools keep what they download: HF_HUB_CACHE, else HF_HOME/hub, else
/// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Empty if none of them is set.
std::filesystem::path hub_cache_folder();

/// "Qwen/Qwen3-30B-A3B": two names of letters, digits, '-', '_' and '.'.
bool is_model_id(std::string_view text);

/// The snapshot of a model id in the Hugging Face cache: models--ORG--NAME/snapshots/COMMIT, COMMIT
/// as refs/main says. If it isn't there, or files of it are missing, `problem` gets "what; remedy".
/// `needs_weights` false: config.json is enough.
std::filesystem::path find_cached_model(const std::string& model_id, bool needs_weights,
                                        std::string& problem);

}  // namespace fastfd::config
