#include "kernels/norm/op.h"

namespace fastfd::kernels {
Status launch_rms_norm(const RmsNormParams& params, const device::CpuStream& /*stream*/) {
  reference_rms_norm(params);
  return Status::ok();
}
Status launch_combine_norm(const CombineNormParams& params, const device::CpuStream& /*stream*/) {
  reference_combine_norm(params);
  return Status::ok();
}
}  // namespace fastfd::kernels
