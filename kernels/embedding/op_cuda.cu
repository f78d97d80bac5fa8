#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/embedding/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Both bf16 of a word as float.
__device__ float2 widen(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U));
}

/// One block a row; a thread converts 16 bytes at a time.
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingParams params) {
  const std::int64_t row = blockIdx.x;
  if (row >= params.control->num_rows) {
    return;
  }
  const layout::LaneRow entry = params.rows[row];
  const TokenId token = entry.token == kNoToken ? params.last_tokens[entry.slot] : entry.token;
  const bool known = token >= 0 && token < params.vocab_size;
  const auto* source =
      reinterpret_cast<const uint4*>(params.table + (known ? token : 0) * params.dim);
  auto* out = reinterpret_cast<float4*>(params.out + row * params.dim);
  const int num_vectors = static_cast<int>(params.dim / 8);
  for (int i = static_cast<int>(threadIdx.x); i < num_vectors; i += kThreads) {
    const uint4 packed = known ? source[i] : make_uint4(0, 0, 0, 0);
    const float2 a = widen(packed.x);
    const float2 b = widen(packed.y);
    const float2 c = widen(packed.z);
    const float2 d = widen(packed.w);
    out[2 * i] = make_float4(a.x, a.y, b.x, b.y);
    out[2 * i + 1] = make_float4(c.x, c.y, d.x, d.y);
  }
}

}  // namespace

Status launch_embedding(const EmbeddingParams& params, device::CudaStream stream) {
  if (params.max_rows < 0 || params.dim < 8 || params.dim % 8 != 0 || params.vocab_size < 1) {
    return {StatusCode::kInvalidArgument,
            "embedding: needs a vocabulary and a dim that is a multiple of 8, not " +
                std::to_string(params.dim)};
  }
  return launch(embedding_kernel,
                {.grid = dim3(static_cast<unsigned>(params.max_rows)), .block = dim3(kThreads)},
                stream, "embedding", params);
}

}  // namespace fastfd::kernels::cuda
