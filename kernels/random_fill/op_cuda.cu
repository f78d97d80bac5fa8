#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/random_fill/generator.h"
#include "kernels/random_fill/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kVector = 8;  // values that a thread stores at once

/// A thread's next 16 bytes are a grid further on.
__global__ void __launch_bounds__(kThreads)
    random_fill_kernel(RandomFillParams params, float step) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads * kVector;
  std::uint64_t i = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  for (; i + kVector <= params.count; i += stride) {
    std::uint32_t words[kVector / 2];
#pragma unroll
    for (unsigned j = 0; j < kVector / 2; ++j) {
      const std::uint64_t index = params.first + i + 2 * j;
      words[j] = random_normal(params.key, index, step).bits |
                 std::uint32_t{random_normal(params.key, index + 1, step).bits} << 16;
    }
    *reinterpret_cast<uint4*>(params.out + i) = make_uint4(words[0], words[1], words[2], words[3]);
  }
  for (; i < params.count; ++i) {  // the one thread that the end falls to
    params.out[i] = random_normal(params.key, params.first + i, step);
  }
}

}  // namespace

Status launch_random_fill(const RandomFillParams& params, device::CudaStream stream) {
  constexpr std::uint64_t kMostBlocks = 4096;
  constexpr std::uint64_t kBlockValues = kThreads * kVector;
  if (reinterpret_cast<std::uintptr_t>(params.out) % sizeof(uint4) != 0) {
    return {StatusCode::kInvalidArgument, "random fill: the target must be aligned to 16 bytes"};
  }
  const std::uint64_t blocks =
      std::min((params.count + kBlockValues - 1) / kBlockValues, kMostBlocks);
  return launch(random_fill_kernel,
                {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)}, stream,
                "random fill", params, params.stddev / kRandomNormalSteps);
}

}  // namespace fastfd::kernels::cuda
