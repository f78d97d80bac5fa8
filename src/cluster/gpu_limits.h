#pragma once

#include <cstdint>
#include <string>

#include "fastfd/model/model_spec.h"

namespace fastfd::cluster {

/// What of a model the GPU kernels can't compute, with what they could ("head_dim 32 (64, 128 and
/// 256 can)"); empty if they compute all of it. `max_model_len`: tokens of the longest sequence,
/// from which a sliding window may hide none.
std::string what_gpus_lack(const model::ModelSpec& spec, std::uint32_t max_model_len);

}  // namespace fastfd::cluster
