#pragma once

#include "model/hf_config.h"

namespace fastfd::model {

/// DeepseekV2ForCausalLM and DeepseekV3ForCausalLM: latent attention in all layers, dense FFNs in
/// the first, experts with shared ones behind. Throw ModelError.
void read_deepseek_v2(const HfConfig& config, ModelSpec& spec);
void read_deepseek_v3(const HfConfig& config, ModelSpec& spec);

}  // namespace fastfd::model
