#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace fastfd::model::qwen3_moe {

inline std::string layer_name(std::uint32_t layer, const char* rest) {
  return fmt::format("model.layers.{}.{}", layer, rest);
}

/// `projection`: gate_proj, up_proj or down_proj.
inline std::string expert_name(std::uint32_t layer, std::uint32_t expert, const char* projection) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, projection);
}

}  // namespace fastfd::model::qwen3_moe
