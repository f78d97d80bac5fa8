#include "fastfd/model/model_spec.h"

#include <algorithm>

namespace fastfd::model {

DenseSlice dense_slice(std::uint32_t intermediate_dim, std::uint32_t num_slices,
                       std::uint32_t slice) {
  constexpr std::uint32_t kFewestBlocks = 8;  // of a slice: one more is an eighth
  std::uint32_t block = 1;
  for (const std::uint32_t candidate : {128U, 32U}) {
    if (block == 1 && intermediate_dim / candidate >= kFewestBlocks * num_slices) {
      block = candidate;
    }
  }
  const std::uint32_t num_blocks = (intermediate_dim + block - 1) / block;
  const auto border = [&](std::uint32_t index) {
    const std::uint32_t blocks =
        index * (num_blocks / num_slices) + std::min(index, num_blocks % num_slices);
    return std::min(blocks * block, intermediate_dim);
  };
  return {border(slice), border(slice + 1)};
}

}  // namespace fastfd::model
