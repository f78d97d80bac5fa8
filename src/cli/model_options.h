#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "fastfd/config/cluster_config.h"

namespace fastfd::cli {

/// What stands in for keys of a cluster file's `model`; unset ones leave the file's value.
struct ModelArguments {
  std::optional<LoadFormat> load_format;
  std::optional<std::uint32_t> num_layers;
  std::optional<config::ReasoningParser> reasoning_parser;

  void apply_to(config::ModelConfig& model) const;
};

/// --load-format and --num-layers.
void add_model_options(CLI::App& command, ModelArguments& arguments);

/// --reasoning-parser, for commands that answer chats.
void add_reasoning_option(CLI::App& command, ModelArguments& arguments);

}  // namespace fastfd::cli
