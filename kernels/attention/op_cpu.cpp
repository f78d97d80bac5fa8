#include "kernels/attention/op.h"

namespace fastfd::kernels {
Status launch_paged_attention(const PagedAttentionParams& params,
                              const device::CpuStream& /*stream*/) {
  if (params.abort != nullptr && params.abort->load(std::memory_order_relaxed)) {
    return {StatusCode::kAborted, "paged attention aborted"};
  }
  reference_paged_attention(params);
  return Status::ok();
}
}  // namespace fastfd::kernels
