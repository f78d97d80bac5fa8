#pragma once

/// The models whose layers are gated delta nets and gated full attention: Qwen3-Next, Qwen3.5-MoE.

#include "model/hf_config.h"
#include "model/tensor_names.h"

namespace fastfd::model {

void read_qwen3_next(const HfConfig& config, ModelSpec& spec);
void read_qwen3_5_moe_text(const HfConfig& config, ModelSpec& spec);
/// The same within a model that also sees: `text_config`.
void read_qwen3_5_moe(const HfConfig& config, ModelSpec& spec);

TensorNames qwen3_next_names();
/// Tensors of the vision tower and of multi-token prediction lie elsewhere and stay unread.
TensorNames qwen3_5_moe_names();

}  // namespace fastfd::model
