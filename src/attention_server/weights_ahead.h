#pragma once

#include "fastfd/device/cache_fetch.h"
#include "fastfd/model/model.h"

namespace fastfd::attention_server {

/// What an attention server reads between two waits for FFN servers, in its order and as far as it
/// is worth fetching: [i] before it dispatches layer i; [num_layers] to sample.
std::vector<device::MemoryRanges> weights_by_layer(const model::AttentionWeights& weights);

}  // namespace fastfd::attention_server
