#pragma once

#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// y = y * sigmoid(gate), element by element: the output gate of an attention layer.
struct SigmoidGateParams {
  std::int64_t num_rows = 0;
  std::int64_t dim = 0;
  const float* gate = nullptr;  ///< [num_rows, dim]
  float* y = nullptr;           ///< [num_rows, dim]
};
Status launch_sigmoid_gate(const SigmoidGateParams& params, const device::CpuStream& stream);
void reference_sigmoid_gate(const SigmoidGateParams& params);

}  // namespace fastfd::kernels
