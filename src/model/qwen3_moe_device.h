#pragma once

#include <vector>

#include "fastfd/model/device_weights.h"
#include "fastfd/model/safetensors.h"

namespace fastfd::model::qwen3_moe {

DeviceAttentionWeights upload_attention(const Checkpoint& checkpoint, const ModelSpec& spec,
                                        const device::CudaDevice& device, LoadReport* report);
DeviceFfnWeights upload_ffn(const Checkpoint& checkpoint, const ModelSpec& spec,
                            const std::vector<std::uint32_t>& experts,
                            const device::CudaDevice& device, LoadReport* report);

}  // namespace fastfd::model::qwen3_moe
