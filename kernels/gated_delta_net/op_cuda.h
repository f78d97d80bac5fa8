#pragma once

/// The GPU form of kernels/gated_delta_net/op.h.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/gated_delta_net/op.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// Floats of one sequence's matrices in one layer: [num_v_heads][k_head_dim / 4][v_head_dim][4];
/// the last index is the quarter of the keys, so that a warp's loads lie together.
constexpr std::int64_t recurrent_state_floats(const GatedDeltaNetShape& shape) {
  return shape.num_v_heads * shape.k_head_dim * shape.v_head_dim;
}

/// Columns that a block of the kernel has.
inline constexpr std::int64_t kDeltaColumns = 32;
inline constexpr std::int64_t kMaxHeadDim = 256;

/// Whether the GPU has kernels for the shape.
constexpr bool is_supported(const GatedDeltaNetShape& shape) {
  return (shape.k_head_dim == 64 || shape.k_head_dim == 128 || shape.k_head_dim == 256) &&
         shape.v_head_dim > 0 && shape.v_head_dim % kDeltaColumns == 0 &&
         shape.v_head_dim <= kMaxHeadDim && shape.num_k_heads > 0 && shape.num_v_heads > 0 &&
         shape.num_v_heads % shape.num_k_heads == 0 && shape.conv_kernel >= 2 &&
         shape.conv_kernel <= kMaxConvKernel;
}

/// A layer's rows of one lane. States lie by slot and are updated in place: a slot's rows run in
/// one stream, or in streams that wait for each other. The sequence begins where a span starts at
/// position 0: its states are not read there.
struct GatedDeltaNetParams {
  GatedDeltaNetShape shape;
  std::int64_t max_rows = 0;   ///< the bucket
  std::int64_t max_spans = 0;  ///< of the bucket
  const layout::LaneControl* control = nullptr;
  const layout::AbortState* abort = nullptr;
  const layout::LaneRow* rows = nullptr;    ///< [max_rows]
  const layout::LaneSpan* spans = nullptr;  ///< [max_spans]
  const bf16* projected = nullptr;          ///< [max_rows, row_dim]
  const float* conv_weight = nullptr;       ///< [conv_kernel, conv_dim], the oldest input's first
  const float* a_log = nullptr;             ///< [num_v_heads]
  const float* dt_bias = nullptr;           ///< [num_v_heads]
  const float* norm_weight = nullptr;       ///< [v_head_dim]
  float eps = 1e-6F;
  float* conv_states = nullptr;       ///< [num_slots, conv_state_floats]
  float* recurrent_states = nullptr;  ///< [num_slots, recurrent_state_floats]
  float* mixed = nullptr;             ///< [max_rows, conv_dim], scratch
  float* heads = nullptr;             ///< [max_rows, value_dim], scratch
  bf16* out = nullptr;                ///< [max_rows, value_dim]
};
/// A row's result depends on its own sequence only, bit for bit: not on other spans or the cutting
/// of a prompt. Writes nothing if the epoch is aborted. kInvalidArgument for shapes the kernels
/// don't have: k_head_dim is 64, 128 or 256, v_head_dim a multiple of 32 up to
/// 256.
Status launch_gated_delta_net(const GatedDeltaNetParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
