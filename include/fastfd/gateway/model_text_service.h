#pragma once

#include <filesystem>
#include <memory>

#include "fastfd/gateway/text_service.h"

namespace fastfd::gateway {

/// The text side of a Hugging Face model folder: its tokenizer and, if it has one, its chat
/// template. Throws TextError.
std::shared_ptr<const TextService> load_text_service(const std::filesystem::path& model_dir);

}  // namespace fastfd::gateway
