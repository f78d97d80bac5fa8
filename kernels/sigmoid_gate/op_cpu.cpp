#include "kernels/sigmoid_gate/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {

Status launch_sigmoid_gate(const SigmoidGateParams& params, const device::CpuStream& stream) {
  if (params.num_rows < 0 || params.dim < 1) {
    return {StatusCode::kInvalidArgument, "sigmoid gate: needs num_rows >= 0 and dim >= 1"};
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto elements = static_cast<double>(params.num_rows * params.dim);
  simd::split(stream, params.num_rows, 1,
              simd::estimated_microseconds(40.0 * elements, 12.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                  table.sigmoid_gate(params.gate + row * params.dim, params.y + row * params.dim,
                                     params.dim);
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
