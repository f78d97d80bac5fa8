#include <cuda_fp8.h>

#include <cfloat>
#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/layout/row.h"
#include "kernels/quantize/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorsPerRow = kQuantizeBlock / kGroupValues;  // threads beside each other
constexpr int kRowsAtOnce = kThreads / kVectorsPerRow;         // and below
constexpr int kGroupsPerThread = kQuantizeBlock / kRowsAtOnce;

__device__ std::uint32_t pack_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}

/// A CTA a block of 128 x 128, which its threads hold in registers between maximum and rounding.
__global__ void __launch_bounds__(kThreads) quantize_kernel(QuantizeParams params) {
  __shared__ float warp_maxima[kThreads / kWarpSize];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t begin =
      (std::int64_t{blockIdx.y} * kQuantizeBlock + thread / kVectorsPerRow) * params.cols +
      std::int64_t{blockIdx.x} * kQuantizeBlock + thread % kVectorsPerRow * int{kGroupValues};
  Group groups[kGroupsPerThread];
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    groups[i] = load_group(params.values + begin + std::int64_t{i} * kRowsAtOnce * params.cols);
    for (const float value : groups[i].values) {
      largest = fmaxf(largest, fabsf(value));
    }
  }
  largest = reduce_block<kThreads>(largest, 0.0F, warp_maxima, Max{});
  float scale = largest / layout::kLargestE4M3;
  scale = scale >= FLT_MIN ? scale : 1.0F;
  if (thread == 0) {
    params.scales[std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = scale;
  }
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    // Divided: a product with 1 / scale would round differently from what the scale says.
    const float* v = groups[i].values;
    uint2 packed;
    packed.x = pack_pair(v[0] / scale, v[1] / scale) | pack_pair(v[2] / scale, v[3] / scale) << 16;
    packed.y = pack_pair(v[4] / scale, v[5] / scale) | pack_pair(v[6] / scale, v[7] / scale) << 16;
    *reinterpret_cast<uint2*>(params.e4m3 + begin + std::int64_t{i} * kRowsAtOnce * params.cols) =
        packed;
  }
}

}  // namespace

Status launch_quantize(const QuantizeParams& params, device::CudaStream stream) {
  const auto bad_dim = [](std::int64_t dim) {
    constexpr std::int64_t kMostBlocks = 65535;
    return dim <= 0 || dim % kQuantizeBlock != 0 || dim / kQuantizeBlock > kMostBlocks;
  };
  if (bad_dim(params.rows) || bad_dim(params.cols)) {
    return {StatusCode::kInvalidArgument,
            "quantize: rows and columns must be multiples of 128, got " +
                std::to_string(params.rows) + " and " + std::to_string(params.cols)};
  }
  const dim3 blocks(static_cast<unsigned>(params.cols / kQuantizeBlock),
                    static_cast<unsigned>(params.rows / kQuantizeBlock));
  return launch(quantize_kernel, {.grid = blocks, .block = dim3(kThreads)}, stream, "quantize",
                params);
}

}  // namespace fastfd::kernels::cuda
