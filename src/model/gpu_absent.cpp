// Stands in for the loading into GPU memory where there is no CUDA toolkit: says so.
#include "model/loader.h"

namespace fastfd::model {

DeviceAttentionWeights upload_attention(const TensorSource& /*source*/, const ModelSpec& /*spec*/,
                                        const TensorMap& /*tensors*/,
                                        const device::CudaDevice& /*device*/,
                                        LoadReport* /*report*/) {
  throw device::DeviceError(device::cuda_availability().message());
}

DeviceFfnWeights upload_ffn(const TensorSource& /*source*/, const ModelSpec& /*spec*/,
                            const TensorMap& /*tensors*/, const ExpertPlacement& /*placement*/,
                            ServerRank /*ffn_rank*/, const device::CudaDevice& /*device*/,
                            LoadReport* /*report*/) {
  throw device::DeviceError(device::cuda_availability().message());
}

}  // namespace fastfd::model
