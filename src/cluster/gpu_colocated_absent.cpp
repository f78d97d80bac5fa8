// Stands in for co-located GPU experts where there is no CUDA toolkit: says so.
#include "cluster/gpu_colocated.h"

namespace fastfd::cluster {

// Values as in the real ones, which keep them.
// NOLINTBEGIN(performance-unnecessary-value-param)

std::unique_ptr<GpuColocatedExperts> make_gpu_colocated_experts(
    const Blueprint& /*blueprint*/, ServerRank /*rank*/,
    std::shared_ptr<const model::DeviceFfnWeights> /*weights*/, const device::GpuPart& /*gpu*/) {
  throw device::DeviceError(device::cuda_availability().message());
}

// NOLINTEND(performance-unnecessary-value-param)

}  // namespace fastfd::cluster
