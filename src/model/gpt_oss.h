#pragma once

/// gpt-oss (OpenAI): sliding and full attention in turns, both with sinks; clamped experts with
/// biases.

#include "model/hf_config.h"
#include "model/tensor_names.h"

namespace fastfd::model {

void read_gpt_oss(const HfConfig& config, ModelSpec& spec);
TensorNames gpt_oss_names();

}  // namespace fastfd::model
