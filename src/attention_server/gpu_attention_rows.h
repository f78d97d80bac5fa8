#pragma once

/// What the attention layers of a GPU's attention server share, whatever their kind.

#include <cstdint>

#include "attention_server/gpu_lane.h"
#include "attention_server/piece_order.h"
#include "kernels/gemm/op_cuda.h"

namespace fastfd::attention_server {

/// One lane's rows on their way through a layer. The lane holds them normed, and the residual
/// stream that the layer's result is added to.
struct GpuAttentionRows {
  const GpuLane* lane = nullptr;
  LaneId lane_id = 0;
  std::uint32_t layer = 0;
  std::uint32_t bucket = 0;
  bool has_pieces = false;  ///< of prompts, whose other pieces may run in other lanes
  PieceOrder* order = nullptr;
  const PageId* page_tables = nullptr;  ///< [num_slots, pages_per_slot]
  std::uint32_t pages_per_slot = 0;
  const layout::AbortState* abort = nullptr;
};

/// Between a layer's writes into pages and its reads: a piece reads what those before it have
/// written, and may write before they have.
inline Status meet_other_pieces(const GpuAttentionRows& rows) {
  if (!rows.has_pieces) {
    return Status::ok();
  }
  const device::DeviceStream& stream = rows.lane->device_stream();
  auto status = rows.order->wait_for_others(rows.lane_id, rows.layer, stream);
  return status ? rows.order->wrote(rows.lane_id, rows.layer, stream) : status;
}

/// c = a weights^T + bias for all rows of a lane; rows of a and c lie close together.
struct GpuProjection {
  std::int64_t n = 0;
  std::int64_t k = 0;
  const bf16* a = nullptr;
  const bf16* weights = nullptr;
  void* c = nullptr;
  kernels::cuda::GemmOutput output = kernels::cuda::GemmOutput::kBFloat16;
  const float* bias = nullptr;
};
inline Status project(const GpuLane& lane, std::uint32_t bucket, const GpuProjection& projection) {
  return kernels::cuda::launch_gemm({.max_rows = bucket,
                                     .num_rows = &lane.control()->num_rows,
                                     .n = projection.n,
                                     .k = projection.k,
                                     .a = projection.a,
                                     .lda = projection.k,
                                     .weights = projection.weights,
                                     .c = projection.c,
                                     .ldc = projection.n,
                                     .output = projection.output,
                                     .bias = projection.bias},
                                    lane.stream());
}

}  // namespace fastfd::attention_server
