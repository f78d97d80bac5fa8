#include "kernels/rope/op.h"

namespace fastfd::kernels {
Status launch_qk_norm_rope(const QkNormRopeParams& params, const device::CpuStream& /*stream*/) {
  reference_qk_norm_rope(params);
  return Status::ok();
}
}  // namespace fastfd::kernels
