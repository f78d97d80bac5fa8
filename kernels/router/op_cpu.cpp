#include <fmt/format.h>

#include "kernels/router/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

/// Keeps the top_k largest probabilities sorted while the experts pass in ascending id; an equal
/// one that comes later stays behind, so ties go to the lower id. NaN is never larger.
void select_top_k(const float* probabilities, std::int64_t num_experts, std::int64_t top_k,
                  std::int32_t* experts, float* weights) {
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    const float probability = probabilities[expert];
    std::int64_t slot = expert;
    if (expert >= top_k) {
      if (!(probability > weights[top_k - 1])) {
        continue;
      }
      slot = top_k - 1;
    }
    for (; slot > 0 && probability > weights[slot - 1]; --slot) {
      weights[slot] = weights[slot - 1];
      experts[slot] = experts[slot - 1];
    }
    weights[slot] = probability;
    experts[slot] = static_cast<std::int32_t>(expert);
  }
}

void run_row(const RouterParams& params, const simd::KernelTable& table, std::int64_t row,
             float* probabilities) {
  const float* logits = params.logits + row * params.num_experts;
  bool has_nan = false;
  const float largest = table.max_element(logits, params.num_experts, &has_nan);
  const auto total =
      static_cast<float>(table.exp_sum(logits, params.num_experts, largest, 1.0F, probabilities));
  for (std::int64_t i = 0; i < params.num_experts; ++i) {
    probabilities[i] /= total;
  }
  float* weights = params.weights + row * params.top_k;
  select_top_k(probabilities, params.num_experts, params.top_k, params.experts + row * params.top_k,
               weights);
  if (!params.renormalize) {
    return;
  }
  float kept = 0.0F;
  for (std::int64_t i = 0; i < params.top_k; ++i) {
    kept += weights[i];
  }
  for (std::int64_t i = 0; i < params.top_k; ++i) {
    weights[i] /= kept;
  }
}

}  // namespace

Status launch_router(const RouterParams& params, const device::CpuStream& stream) {
  if (params.top_k < 1 || params.top_k > params.num_experts) {
    return {StatusCode::kInvalidArgument,
            fmt::format("router: top_k is {} and must be 1 .. {} experts", params.top_k,
                        params.num_experts)};
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto elements = static_cast<double>(params.num_rows * params.num_experts);
  simd::split(stream, params.num_rows, 1,
              simd::estimated_microseconds(200.0 * elements, 4.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                thread_local device::HostBuffer scratch;
                float* probabilities = simd::reserve<float>(scratch, params.num_experts);
                for (std::int64_t row = begin; row < end; ++row) {
                  run_row(params, table, row, probabilities);
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
