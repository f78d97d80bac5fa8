#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

struct EmbeddingParams {
  std::int64_t num_rows = 0;
  std::int64_t dim = 0;
  std::int64_t vocab_size = 0;
  const TokenId* tokens = nullptr;  ///< [num_rows]; outside the vocabulary: kInvalidArgument
  const bf16* table = nullptr;      ///< [vocab_size, dim]
  float* out = nullptr;             ///< [num_rows, dim]
};
Status launch_embedding(const EmbeddingParams& params, const device::CpuStream& stream);
void reference_embedding(const EmbeddingParams& params);

}  // namespace fastfd::kernels
