#pragma once

/// Included by one unit per instruction set, after which FASTFD_SIMD::make_table() is that set's
/// table.

#include "kernels/attention/attention_simd.h"
#include "kernels/expert_ffn/expert_simd.h"
#include "kernels/gated_delta_net/delta_simd.h"
#include "kernels/gemm/gemm_simd.h"
#include "kernels/norm/norm_simd.h"
#include "kernels/sampling/sampling_simd.h"
#include "kernels/sigmoid_gate/gate_simd.h"
#include "kernels/simd/convert_simd.h"
#include "kernels/simd/table.h"

namespace fastfd::kernels::FASTFD_SIMD {

constexpr simd::KernelTable make_table(const char* name) {
  return {
    .name = name, .gemm_f32 = gemm_f32,
#if defined(__AVX512BF16__)
    .gemm_bf16 = gemm_bf16,
#else
    .gemm_bf16 = nullptr,
#endif
    .to_bf16 = to_bf16, .round_bf16 = round_bf16, .from_bf16 = from_bf16, .swiglu = swiglu,
    .clamped_swiglu = clamped_swiglu, .axpy = axpy, .rms_norm = rms_norm,
    .add_partials = add_partials, .rotate = rotate, .attention = attention, .conv_silu = conv_silu,
    .l2_normalize = l2_normalize, .silu_gate = silu_gate, .delta_rule = delta_rule,
    .sigmoid_gate = sigmoid_gate, .max_element = max_element, .find_at_least = find_at_least,
    .exp_sum = exp_sum
  };
}

}  // namespace fastfd::kernels::FASTFD_SIMD
