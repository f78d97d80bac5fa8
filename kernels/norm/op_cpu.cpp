#include "kernels/norm/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

Status check_shape(std::int64_t num_rows, std::int64_t dim) {
  if (num_rows < 0 || dim < 1) {
    return {StatusCode::kInvalidArgument, "norm: needs num_rows >= 0 and dim >= 1"};
  }
  return Status::ok();
}

double microseconds_of(std::int64_t num_rows, std::int64_t dim, std::int64_t num_inputs) {
  const auto elements = static_cast<double>(num_rows * dim);
  return simd::estimated_microseconds(4.0 * elements,
                                      4.0 * elements * static_cast<double>(num_inputs + 1));
}

}  // namespace

Status launch_rms_norm(const RmsNormParams& params, const device::CpuStream& stream) {
  if (Status status = check_shape(params.num_rows, params.dim); !status) {
    return status;
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  simd::split(stream, params.num_rows, 1, microseconds_of(params.num_rows, params.dim, 1),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                  table.rms_norm(params.x + row * params.dim, params.weight,
                                 params.y + row * params.dim, params.dim, params.eps);
                }
              });
  return Status::ok();
}

Status launch_combine_norm(const CombineNormParams& params, const device::CpuStream& stream) {
  if (Status status = check_shape(params.num_rows, params.dim); !status) {
    return status;
  }
  if (params.partial_dtype != DType::kFloat32 && params.partial_dtype != DType::kBFloat16) {
    return {StatusCode::kInvalidArgument, "combine norm: partials must be float32 or bfloat16"};
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const bool is_bf16 = params.partial_dtype == DType::kBFloat16;
  simd::split(stream, params.num_rows, 1,
              microseconds_of(params.num_rows, params.dim, params.num_ranks + 1),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                  float* residual = params.residual + row * params.dim;
                  table.add_partials(residual, params.partials + row, params.num_ranks,
                                     params.num_rows, is_bf16, params.dim);
                  if (params.weight != nullptr) {
                    table.rms_norm(residual, params.weight, params.y + row * params.dim, params.dim,
                                   params.eps);
                  }
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
