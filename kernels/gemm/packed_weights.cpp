#include <algorithm>
#include <string>

#include "fastfd/core/check.h"
#include "kernels/gemm/op.h"

namespace fastfd::kernels {
namespace {

std::int64_t packed_index(std::int64_t row, std::int64_t col, std::int64_t padded_k) {
  const std::int64_t panel = row / kPanelRows;
  return panel * kPanelRows * padded_k + (col / 2) * (kPanelRows * 2) + (row % kPanelRows) * 2 +
         col % 2;
}

}  // namespace

PackedWeights::PackedWeights(std::int64_t n, std::int64_t k, device::HostArena* arena)
    : n_(n), k_(k) {
  check(n >= 0 && k >= 0, "packed weights need n >= 0 and k >= 0");
  const std::size_t num_bytes =
      static_cast<std::size_t>(num_panels() * kPanelRows * padded_k()) * sizeof(bf16);
  buffer_ = arena != nullptr ? arena->allocate(num_bytes) : device::HostBuffer(num_bytes);
}

void PackedWeights::pack_rows(std::int64_t first_row, std::int64_t num_rows, const bf16* source) {
  check(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= n_,
        "rows to pack lie outside the weight matrix");
  bf16* packed = buffer_.as<bf16>();
  for (std::int64_t i = 0; i < num_rows; ++i) {
    bf16* target = packed + packed_index(first_row + i, 0, padded_k());
    const bf16* row = source + i * k_;
    for (std::int64_t col = 0; col < k_; ++col) {
      target[(col / 2) * (kPanelRows * 2) + col % 2] = row[col];
    }
  }
}

void PackedWeights::unpack_row(std::int64_t row, float* out) const {
  const bf16* source = data() + packed_index(row, 0, padded_k());
  for (std::int64_t col = 0; col < k_; ++col) {
    out[col] = source[(col / 2) * (kPanelRows * 2) + col % 2].to_float();
  }
}

bf16 PackedWeights::at(std::int64_t row, std::int64_t col) const {
  return data()[packed_index(row, col, padded_k())];
}

}  // namespace fastfd::kernels
