#pragma once

#include <vector>

#include "fastfd/model/device_weights.h"
#include "model/tensor_source.h"

namespace fastfd::model::qwen3_moe {

DeviceAttentionWeights upload_attention(const TensorSource& source, const ModelSpec& spec,
                                        const device::CudaDevice& device, LoadReport* report);
DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                            const std::vector<std::uint32_t>& experts,
                            const device::CudaDevice& device, LoadReport* report);

}  // namespace fastfd::model::qwen3_moe
