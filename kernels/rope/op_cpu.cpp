#include "kernels/rope/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

void run_row(const QkNormRopeParams& params, const simd::KernelTable& table, std::int64_t row) {
  const std::int64_t num_heads = params.num_q_heads + params.num_kv_heads;
  const std::int64_t row_dim = (num_heads + params.num_kv_heads) * params.head_dim;
  const std::int64_t half = params.table->rotary_dim / 2;
  const std::int64_t angle = params.positions[row] * half;
  if (params.norm == QkNorm::kWhole) {
    float* q = params.qkv + row * row_dim;
    float* k = q + params.num_q_heads * params.head_dim;
    table.rms_norm(q, params.q_norm_weight, q, params.num_q_heads * params.head_dim, params.eps);
    table.rms_norm(k, params.k_norm_weight, k, params.num_kv_heads * params.head_dim, params.eps);
  }
  for (std::int64_t head = 0; head < num_heads; ++head) {
    float* x = params.qkv + row * row_dim + head * params.head_dim;
    if (params.norm == QkNorm::kPerHead) {
      const float* weight = head < params.num_q_heads ? params.q_norm_weight : params.k_norm_weight;
      table.rms_norm(x, weight, x, params.head_dim, params.eps);
    }
    table.rotate(x, params.table->cos.data() + angle, params.table->sin.data() + angle, half);
  }
}

}  // namespace

Status launch_qk_norm_rope(const QkNormRopeParams& params, const device::CpuStream& stream) {
  if (params.table == nullptr || params.table->rotary_dim > params.head_dim) {
    return {StatusCode::kInvalidArgument,
            "rope: needs a table whose rotary_dim is at most head_dim"};
  }
  if (params.norm != QkNorm::kNone &&
      (params.q_norm_weight == nullptr || params.k_norm_weight == nullptr)) {
    return {StatusCode::kInvalidArgument, "rope: a norm of q and k needs weights for both"};
  }
  if (auto status = params.table->check_positions("rope", params.positions, params.num_rows);
      !status) {
    return status;
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto elements = static_cast<double>(
      params.num_rows * (params.num_q_heads + params.num_kv_heads) * params.head_dim);
  simd::split(stream, params.num_rows, 1,
              simd::estimated_microseconds(20.0 * elements, 8.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                  run_row(params, table, row);
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
