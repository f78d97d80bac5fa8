#include <fmt/format.h>

#include "kernels/embedding/op.h"
#include "kernels/simd/kernel_table.h"

namespace fastfd::kernels {

Status launch_embedding(const EmbeddingParams& params, const device::CpuStream& stream) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const TokenId token = params.tokens[row];
    if (token < 0 || token >= params.vocab_size) {
      return {StatusCode::kInvalidArgument,
              fmt::format("embedding: token {} of row {} is outside the vocabulary of {}", token,
                          row, params.vocab_size)};
    }
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    float* out = params.out + row * params.dim;
    if (params.packed_table != nullptr) {
      params.packed_table->unpack_row(params.tokens[row], out);
      continue;
    }
    const bf16* source = params.table + params.tokens[row] * params.dim;
    table.from_bf16(&source->bits, out, params.dim);
  }
  return Status::ok();
}

}  // namespace fastfd::kernels
