#pragma once

#include <string>

#include "fastfd/model/model_spec.h"

namespace fastfd::cluster {

/// What of a model the GPU kernels can't compute, with what they could ("head_dim 32 (64, 128 and
/// 256 can)"); empty if they compute all of it.
std::string what_gpus_lack(const model::ModelSpec& spec);

}  // namespace fastfd::cluster
