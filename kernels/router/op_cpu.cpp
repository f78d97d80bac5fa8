#include "kernels/router/op.h"

namespace fastfd::kernels {
Status launch_router(const RouterParams& params, const device::CpuStream& /*stream*/) {
  reference_router(params);
  return Status::ok();
}
}  // namespace fastfd::kernels
