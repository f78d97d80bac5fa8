#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"
#include "kernels/gemm/op.h"

namespace fastfd::kernels {

struct EmbeddingParams {
  std::int64_t num_rows = 0;
  std::int64_t dim = 0;
  std::int64_t vocab_size = 0;
  const TokenId* tokens = nullptr;  ///< [num_rows]; outside the vocabulary: kInvalidArgument
  const bf16* table = nullptr;      ///< [vocab_size, dim]
  /// Instead of `table`: [vocab_size, dim], the LM head of a model that ties the two. A row touches
  /// a cache line every two of its elements, which is nothing beside the layers.
  const PackedWeights* packed_table = nullptr;
  float* out = nullptr;  ///< [num_rows, dim]
};
Status launch_embedding(const EmbeddingParams& params, const device::CpuStream& stream);
void reference_embedding(const EmbeddingParams& params);

}  // namespace fastfd::kernels
