#pragma once

#include "fastfd/model/model_spec.h"
#include "model/hf_config.h"

namespace fastfd::model {

/// config.json's quantization_config: block FP8 (quant_method fp8, weight_block_size [128, 128], as
/// of DeepSeek-V3, Qwen3-FP8, MiniMax-M2), MXFP4 (of gpt-oss, where the caller allows it) or none.
/// Throws ModelError that names any other format and lists those served. Which tensors are
/// quantised is for the files to say; modules_to_not_convert and ignored_layers are checked to be
/// lists of names.
StoredQuantization read_quantization(const HfConfig& config, bool may_be_mxfp4);

}  // namespace fastfd::model
