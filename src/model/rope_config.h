#pragma once

#include "model/hf_config.h"

namespace fastfd::model {

/// Fills spec.rope from `rope_parameters` (transformers 5) or `rope_theta`, `rope_scaling` and
/// `partial_rotary_factor` (transformers 4). spec.head_dim and spec.max_positions are set.
///
/// `dynamic` (NTK by sequence length) changes all frequencies with every token beyond
/// max_position_embeddings, which keys that are cached already can't follow; up to there, where
/// FastFD stops, it is no scaling at all. Throws ModelError that lists the types there are.
void read_rope(const HfConfig& config, double default_theta, double default_rotary_factor,
               ModelSpec& spec);

/// What DeepSeek multiplies attention scores by beside their usual scale: the square of YaRN's
/// temperature for `mscale_all_dim`, 1 without it or without scaling.
double read_rope_score_factor(const HfConfig& config);

/// YaRN's factor of cos and sin where config.json gives none.
double yarn_attention_factor(double factor);

}  // namespace fastfd::model
