#include "kernels/embedding/op.h"

namespace fastfd::kernels {

void reference_embedding(const EmbeddingParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    for (std::int64_t i = 0; i < params.dim; ++i) {
      const bf16 value = params.packed_table != nullptr
                             ? params.packed_table->at(params.tokens[row], i)
                             : params.table[params.tokens[row] * params.dim + i];
      params.out[row * params.dim + i] = value.to_float();
    }
  }
}

}  // namespace fastfd::kernels
