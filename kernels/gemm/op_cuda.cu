#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <array>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/gemm/op_cuda.h"
#include "kernels/gemm/tile_mma.cuh"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kStepK = kSwizzleRowBytes / sizeof(bf16);
constexpr int kVectorOutputs = 4;             ///< that a thread stores at once
constexpr int kMostSplits = 8;                ///< of k: the portable cluster size
constexpr std::int64_t kMostBatches = 65535;  ///< a grid's height

/// kRows of A times 64 weights' rows for each of kWarpgroups consumer warpgroups; one more warp
/// drives the copies. kBlocks of them share a multiprocessor.
template <int kRows, int kWarpgroups, int kRingStages, int kBlocks>
struct DenseShape {
  static constexpr int kBlocksPerMultiprocessor = kBlocks;
  static constexpr int kTileRows = kRows;
  static constexpr int kTileOutputs = kMmaRows * kWarpgroups;
  static constexpr int kStages = kRingStages;
  static constexpr int kConsumers = kWarpgroups * kWarpgroupThreads;
  static constexpr int kThreads = kConsumers + kWarpThreads;
  static constexpr int kWeightBytes = kTileOutputs * kSwizzleRowBytes;
  static constexpr int kActivationBytes = kTileRows * kSwizzleRowBytes;
  static constexpr int kRingBytes = kStages * (kWeightBytes + kActivationBytes);
  /// Sums are staged as [row][output]; the padding spreads a warp's stores over all banks.
  static constexpr int kSumStride = kTileOutputs + 4;
  static constexpr int kSharedBytes = kRingBytes + kSwizzleAtomBytes;
  static_assert(kTileRows * kSumStride * static_cast<int>(sizeof(float)) <= kRingBytes);
};

struct DenseArgs {
  const std::uint32_t* num_rows;
  int num_row_tiles;
  int n;
  int num_steps;  ///< of kStepK along k
  void* c;
  std::int64_t ldc;
  std::int64_t batch_stride_c;
  GemmOutput output;
  const float* bias;
};

__device__ void store_outputs(const DenseArgs& args, int row, int column, float4 sum) {
  const std::int64_t offset = blockIdx.y * args.batch_stride_c + row * args.ldc + column;
  if (args.bias != nullptr) {
    const float4 bias = *reinterpret_cast<const float4*>(args.bias + column);
    sum = {sum.x + bias.x, sum.y + bias.y, sum.z + bias.z, sum.w + bias.w};
  }
  if (args.output == GemmOutput::kBFloat16) {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(sum.x, sum.y),
                                     __floats2bfloat162_rn(sum.z, sum.w)};
    *reinterpret_cast<uint2*>(static_cast<bf16*>(args.c) + offset) =
        *reinterpret_cast<const uint2*>(pairs);
    return;
  }
  auto* to = reinterpret_cast<float4*>(static_cast<float*>(args.c) + offset);
  if (args.output == GemmOutput::kAddFloat32) {
    const float4 old = *to;
    sum = {old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w};
  }
  *to = sum;
}

/// The sums of 4 outputs over the cluster's shares of k, in the order of k.
__device__ float4 reduce(const cooperative_groups::cluster_group& cluster, int num_splits,
                         float* own) {
  float4 sum = *reinterpret_cast<const float4*>(cluster.map_shared_rank(own, 0));
  float4 parts[kMostSplits];
#pragma unroll
  for (int split = 1; split < kMostSplits; ++split) {
    if (split < num_splits) {  // all on their way before the first is added
      parts[split] = *reinterpret_cast<const float4*>(cluster.map_shared_rank(own, split));
    }
  }
#pragma unroll
  for (int split = 1; split < kMostSplits; ++split) {
    if (split < num_splits) {
      const float4 part = parts[split];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
  }
  return sum;
}

/// Stores every num_splits-th row of the cluster's tile: the consumers' part.
template <typename Shape>
__device__ void reduce_and_store(const DenseArgs& args, float* sums, int first_row, int num_rows,
                                 int first_output) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const int num_splits = static_cast<int>(cluster.num_blocks());
  constexpr int kVectors = Shape::kTileOutputs / kVectorOutputs;
  for (int i = threadIdx.x;; i += Shape::kConsumers) {
    const int row = static_cast<int>(cluster.block_rank()) + i / kVectors * num_splits;
    const int output = i % kVectors * kVectorOutputs;
    if (row >= num_rows) {
      return;
    }
    if (first_output + output < args.n) {
      float* own = sums + row * Shape::kSumStride + output;
      const float4 sum = num_splits == 1 ? *reinterpret_cast<const float4*>(own)
                                         : reduce(cluster, num_splits, own);
      store_outputs(args, first_row + row, first_output + output, sum);
    }
  }
}

/// One block a (weight tile, row tile, share of k) of the batch's product number blockIdx.y; the
/// shares of a tile form a cluster. Blocks of one weight tile are neighbours, so its second reader
/// finds it in L2.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerMultiprocessor)
    dense_gemm_kernel(const __grid_constant__ CUtensorMap weights_map,
                      const __grid_constant__ CUtensorMap activations_map, DenseArgs args) {
  namespace cg = cooperative_groups;
  extern __shared__ std::byte shared_memory[];
  __shared__ std::uint64_t full[Shape::kStages];
  __shared__ std::uint64_t empty[Shape::kStages];
  const cg::cluster_group cluster = cg::this_cluster();
  const int num_splits = static_cast<int>(cluster.num_blocks());
  const int split = static_cast<int>(cluster.block_rank());
  const int tile = static_cast<int>(blockIdx.x) / num_splits;
  const int first_row = tile % args.num_row_tiles * Shape::kTileRows;
  const int first_output = tile / args.num_row_tiles * Shape::kTileOutputs;
  const int num_rows = min(static_cast<int>(*args.num_rows) - first_row, Shape::kTileRows);
  const int first_step = args.num_steps * split / num_splits;
  const int num_steps = args.num_steps * (split + 1) / num_splits - first_step;

  const std::uint32_t misaligned = shared_address(shared_memory) % kSwizzleAtomBytes;
  std::byte* ring_memory = shared_memory + (misaligned == 0 ? 0 : kSwizzleAtomBytes - misaligned);
  const TileRing<Shape::kStages> ring = {ring_memory,
                                         ring_memory + Shape::kStages * Shape::kWeightBytes,
                                         Shape::kWeightBytes,
                                         Shape::kActivationBytes,
                                         full,
                                         empty};
  if (threadIdx.x == Shape::kConsumers) {
    prefetch_map(&weights_map);
    prefetch_map(&activations_map);
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(&full[stage], 1);
      barrier_init(&empty[stage], Shape::kConsumers / kWarpThreads);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (num_rows <= 0) {
    return;  // the whole cluster does
  }

  auto* sums = reinterpret_cast<float*>(ring_memory);  // once the ring has been read
  RingPosition<Shape::kStages> position;
  if (threadIdx.x >= Shape::kConsumers) {
    if (threadIdx.x == Shape::kConsumers) {
      for (int step = 0; step < num_steps; ++step) {
        const int stage = position.stage;
        barrier_wait(&empty[stage], position.parity ^ 1);
        barrier_arrive_expecting(&full[stage], Shape::kWeightBytes + Shape::kActivationBytes);
        const int k = (first_step + step) * kStepK;
        const int batch = static_cast<int>(blockIdx.y);
        copy_tile(ring.weight_stage(stage), &weights_map, &full[stage], k, first_output, batch);
        copy_tile(ring.activation_stage(stage), &activations_map, &full[stage], k, batch,
                  first_row);
        position.advance();
      }
    }
    __syncwarp();
  } else {
    float acc[1][Shape::kTileRows / 2];
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
    multiply_bf16<false>(acc, ring, warpgroup * kMmaRows, position, num_steps);
    sync_threads(1, Shape::kConsumers);  // the ring's memory changes its use
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    float* to = sums + lane % 4 * 2 * Shape::kSumStride + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < Shape::kTileRows / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[(8 * j + i % 2) * Shape::kSumStride + i / 2 * 8] = acc[0][4 * j + i];
      }
    }
    sync_threads(1, Shape::kConsumers);  // the own sums; racecheck knows no cluster's barrier
  }
  if (num_splits > 1) {
    cluster.sync();
  }
  if (threadIdx.x < Shape::kConsumers) {
    reduce_and_store<Shape>(args, sums, first_row, num_rows, first_output);
  }
  if (num_splits > 1) {
    cluster.sync();  // nobody leaves while its sums are read
  }
}

/// Shares of k: enough blocks for a whole GPU where n alone makes too few. A function of n, k and
/// the number of products only, since the order of the sum hangs on it.
unsigned num_k_splits(std::int64_t n, std::int64_t num_steps, std::int64_t num_batches) {
  constexpr std::int64_t kEnoughBlocks = 160;
  constexpr std::int64_t kLeastSteps = 4;
  const std::int64_t tiles = num_batches * ((n + kMmaRows - 1) / kMmaRows);
  unsigned splits = 1;
  while (splits < kMostSplits && tiles * splits * 2 <= kEnoughBlocks &&
         num_steps / (splits * 2) >= kLeastSteps) {
    splits *= 2;
  }
  return splits;
}

template <typename Shape>
Status launch_shape(const GemmParams& params, cudaStream_t stream) {
  CUtensorMap weights_map;
  CUtensorMap activations_map;
  const std::int64_t element = sizeof(bf16);
  const std::int64_t batches = params.num_batches;
  const std::array<TensorMapDim, 3> weight_dims = {
      TensorMapDim{params.k, 0, kStepK},
      TensorMapDim{params.n, params.k * element, Shape::kTileOutputs},
      TensorMapDim{batches, params.n * params.k * element, 1}};
  // A row has all products' elements side by side.
  const std::int64_t stride_a = batches > 1 ? params.batch_stride_a : params.lda;
  const std::array<TensorMapDim, 3> activation_dims = {
      TensorMapDim{params.k, 0, kStepK}, TensorMapDim{batches, stride_a * element, 1},
      TensorMapDim{params.max_rows, params.lda * element, Shape::kTileRows}};
  auto* kernel = dense_gemm_kernel<Shape>;
  if (Status status = make_tensor_map(&weights_map, DType::kBFloat16, params.weights, weight_dims);
      !status.is_ok()) {
    return status;
  }
  if (Status status =
          make_tensor_map(&activations_map, DType::kBFloat16, params.a, activation_dims);
      !status.is_ok()) {
    return status;
  }
  if (Status status = allow_shared_bytes(kernel, Shape::kSharedBytes, "dense_gemm_kernel");
      !status.is_ok()) {
    return status;
  }
  DenseArgs args{};
  args.num_rows = params.num_rows;
  args.num_row_tiles =
      static_cast<int>((params.max_rows + Shape::kTileRows - 1) / Shape::kTileRows);
  args.n = static_cast<int>(params.n);
  args.num_steps = static_cast<int>((params.k + kStepK - 1) / kStepK);
  args.c = params.c;
  args.ldc = params.ldc;
  args.batch_stride_c = params.batch_stride_c;
  args.output = params.output;
  args.bias = params.bias;
  const auto weight_tiles =
      static_cast<unsigned>((params.n + Shape::kTileOutputs - 1) / Shape::kTileOutputs);
  LaunchShape shape;
  shape.cluster_blocks = num_k_splits(params.n, args.num_steps, batches);
  shape.grid = dim3(weight_tiles * static_cast<unsigned>(args.num_row_tiles) * shape.cluster_blocks,
                    static_cast<unsigned>(batches));
  shape.block = dim3(Shape::kThreads);
  shape.shared_bytes = Shape::kSharedBytes;
  return launch(kernel, shape, stream, "dense_gemm_kernel", weights_map, activations_map, args);
}

}  // namespace

Status launch_gemm(const GemmParams& params, device::CudaStream stream) {
  if (params.max_rows < 0 || params.n <= 0 || params.k <= 0 || params.n % 8 != 0 ||
      params.k % 8 != 0 || params.lda % 8 != 0 || params.ldc % 8 != 0 || params.lda < params.k ||
      params.ldc < params.n) {
    return {StatusCode::kInvalidArgument,
            "gemm: n, k, lda and ldc must be positive multiples of 8, got n = " +
                std::to_string(params.n) + ", k = " + std::to_string(params.k) +
                ", lda = " + std::to_string(params.lda) + ", ldc = " + std::to_string(params.ldc)};
  }
  if (params.num_batches < 1 || params.num_batches > kMostBatches ||
      params.batch_stride_a % 8 != 0 || params.batch_stride_c % 8 != 0 ||
      (params.num_batches > 1 && params.bias != nullptr)) {
    return {StatusCode::kInvalidArgument,
            "gemm: " + std::to_string(params.num_batches) + " products, " +
                std::to_string(params.batch_stride_a) + " and " +
                std::to_string(params.batch_stride_c) +
                " elements apart: at least one, strides in multiples of 8, no bias of several"};
  }
  if (params.max_rows == 0) {
    return Status::ok();
  }
  if (params.max_rows <= 16) {
    return launch_shape<DenseShape<16, 1, 8, 2>>(params, stream);
  }
  if (params.max_rows <= 64) {
    return launch_shape<DenseShape<64, 1, 6, 2>>(params, stream);
  }
  return launch_shape<DenseShape<128, 2, 3, 2>>(params, stream);
}

}  // namespace fastfd::kernels::cuda
