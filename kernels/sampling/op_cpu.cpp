#include "kernels/sampling/op.h"

namespace fastfd::kernels {
Status launch_sampling(std::span<const SamplingRow> rows, std::int64_t vocab_size,
                       std::span<SamplingOutput> outputs, const device::CpuStream& /*stream*/) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t token = 0; token < vocab_size; ++token) {
      if (rows[i].logits[token] != rows[i].logits[token]) {
        return {StatusCode::kInternal, "sampling: NaN logit in row " + std::to_string(i)};
      }
    }
  }
  reference_sampling(rows, vocab_size, outputs);
  return Status::ok();
}
}  // namespace fastfd::kernels
