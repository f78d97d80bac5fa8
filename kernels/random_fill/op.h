#pragma once

#include <cstdint>

#include "fastfd/core/dtype.h"

namespace fastfd::kernels {

/// Elements first .. first + count - 1 of an endless row of nearly normal numbers (generator.h).
struct RandomFillParams {
  std::uint64_t key = 0;    ///< which row: other keys give unrelated numbers
  std::uint64_t first = 0;  ///< index of out[0]
  std::uint64_t count = 0;
  float stddev = 1.0F;
  bf16* out = nullptr;  ///< [count]
};

/// Start-up work of one thread: fills host memory with the same bits as cuda::launch_random_fill.
void random_fill(const RandomFillParams& params);

}  // namespace fastfd::kernels
