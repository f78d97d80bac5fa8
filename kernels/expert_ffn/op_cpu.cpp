#include <utility>

#include "kernels/expert_ffn/op.h"

namespace fastfd::kernels {

struct ExpertFfnScratch::Impl {};
ExpertFfnScratch::ExpertFfnScratch() : impl_(new Impl) {}
ExpertFfnScratch::~ExpertFfnScratch() { delete impl_; }
ExpertFfnScratch::ExpertFfnScratch(ExpertFfnScratch&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)) {}
ExpertFfnScratch& ExpertFfnScratch::operator=(ExpertFfnScratch&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

Status launch_expert_ffn(const ExpertFfnParams& params, ExpertFfnScratch& /*scratch*/,
                         const device::CpuStream& /*stream*/) {
  for (std::uint32_t r = 0; r < params.route_offsets[params.num_tokens]; ++r) {
    if (params.route_experts[r] >= params.experts.size()) {
      return {StatusCode::kInvalidArgument, "expert id outside the server's experts"};
    }
  }
  if (params.abort != nullptr && params.abort->load(std::memory_order_relaxed)) {
    return {StatusCode::kAborted, "expert FFN aborted"};
  }
  reference_expert_ffn(params);
  return Status::ok();
}
}  // namespace fastfd::kernels
