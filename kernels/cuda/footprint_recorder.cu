#include "kernels/cuda/footprint_recorder.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

std::string describe(const RecordedKernel& kernel) {
  const KernelFootprint& footprint = kernel.footprint;
  std::string text = footprint.cluster_size == 1
                         ? "a block"
                         : "a cluster of " + std::to_string(footprint.cluster_size) + " blocks";
  return text + " of " + kernel.name + " (" + std::to_string(footprint.num_threads) +
         " threads of " + std::to_string(footprint.registers_per_thread) + " registers and " +
         std::to_string(footprint.shared_bytes) + " bytes of shared memory a block)";
}

}  // namespace

Status check_residency(const std::vector<RecordedKernel>& kernels, std::uint32_t num_waiting,
                       std::uint32_t num_sms) {
  const auto limits = sm_limits();
  if (!limits) {
    return limits.status();
  }
  for (const RecordedKernel& waiting : kernels) {
    for (const RecordedKernel& working : kernels) {
      if (!waiting.waits || working.waits ||
          leaves_room(waiting.footprint, num_waiting, working.footprint, num_sms, *limits)) {
        continue;
      }
      return {StatusCode::kResourceExhausted,
              std::to_string(num_waiting) + " blocks may wait at once on " +
                  std::to_string(num_sms) + " SMs, which leaves no room for " + describe(working) +
                  "; give the server more SMs (sm_share)"};
    }
  }
  return Status::ok();
}

}  // namespace fastfd::kernels::cuda
