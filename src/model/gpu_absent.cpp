// Stands in for the loading into GPU memory where there is no CUDA toolkit: says so.
#include "model/qwen3_moe_device.h"

namespace fastfd::model::qwen3_moe {

DeviceAttentionWeights upload_attention(const TensorSource& /*source*/, const ModelSpec& /*spec*/,
                                        const device::CudaDevice& /*device*/,
                                        LoadReport* /*report*/) {
  throw device::DeviceError(device::cuda_availability().message());
}

DeviceFfnWeights upload_ffn(const TensorSource& /*source*/, const ModelSpec& /*spec*/,
                            const std::vector<std::uint32_t>& /*experts*/,
                            const device::CudaDevice& /*device*/, LoadReport* /*report*/) {
  throw device::DeviceError(device::cuda_availability().message());
}

}  // namespace fastfd::model::qwen3_moe
