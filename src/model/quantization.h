#pragma once

#include "model/hf_config.h"

namespace fastfd::model {

/// config.json's quantization_config: true for block FP8 (quant_method fp8, weight_block_size
/// [128, 128], as of DeepSeek-V3, Qwen3-FP8, MiniMax-M2), false if there is none. Throws ModelError
/// that names any other format and lists these. Which tensors are quantised is for the files to
/// say; modules_to_not_convert and ignored_layers are checked to be lists of names.
bool read_has_fp8_blocks(const HfConfig& config);

}  // namespace fastfd::model
