#pragma once

#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// softmax over the experts in float, then the top_k largest; ties go to the lower expert id.
struct RouterParams {
  std::int64_t num_rows = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;           ///< 1 .. num_experts
  const float* logits = nullptr;    ///< [num_rows, num_experts]
  bool renormalize = true;          ///< weights of a row sum to 1 (`norm_topk_prob`)
  std::int32_t* experts = nullptr;  ///< [num_rows, top_k], by descending weight
  float* weights = nullptr;         ///< [num_rows, top_k]
};
Status launch_router(const RouterParams& params, const device::CpuStream& stream);
void reference_router(const RouterParams& params);

}  // namespace fastfd::kernels
