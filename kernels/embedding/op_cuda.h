#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::kernels::cuda {

/// The residual's first values. A row names its token, or feeds what was last sampled for its slot:
/// a value that nobody but the device knows yet.
struct EmbeddingParams {
  std::int64_t max_rows = 0;  ///< the bucket
  std::int64_t dim = 0;       ///< a multiple of 8
  std::int64_t vocab_size = 0;
  const layout::LaneControl* control = nullptr;
  const layout::LaneRow* rows = nullptr;  ///< [max_rows]
  const TokenId* last_tokens = nullptr;   ///< [num_slots]
  const bf16* table = nullptr;            ///< [vocab_size, dim]
  float* out = nullptr;                   ///< [max_rows, dim]
};
/// A token outside the vocabulary gives a row of zeros: the sampler has reported the failure that
/// left it there. kInvalidArgument for a dim that is no multiple of 8.
Status launch_embedding(const EmbeddingParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
