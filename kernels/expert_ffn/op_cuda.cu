#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/expert_ffn/grouped_tiles.cuh"
#include "kernels/expert_ffn/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kVectorOutputs = 4;  ///< that a thread stores at once
constexpr bool kCopiedByThreads = true;

/// FP8: every step of 128 along k is summed by itself and added with its scales, in ascending k:
/// the tensor cores' own sums of e4m3 products keep too few bits for a long k.
template <typename Shape>
__device__ void multiply_scaled(float (&sums)[Shape::kRowBlocks][Shape::kRows / 2],
                                const TileRing<Shape::kStages>& ring, const float* scales,
                                int row_begin, RingPosition<Shape::kStages>& position,
                                int num_steps) {
  float part[Shape::kRowBlocks][Shape::kRows / 2];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = position.stage;
    ring.template wait_for<kCopiedByThreads>(position);
    const std::uint64_t columns = tile_descriptor(ring.activation_stage(stage));
    mma_fence();
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
      const std::uint64_t rows = tile_descriptor(ring.weight_stage(stage) +
                                                 (row_begin + block * kMmaRows) * kSwizzleRowBytes);
#pragma unroll
      for (int i = 0; i < kMmasPerRow; ++i) {
        Mma<Shape::kType, Shape::kRows>::issue(part[block], k_step(rows, i), k_step(columns, i),
                                               i > 0);
      }
    }
    mma_commit();
    const float* stage_scales = scales + stage * Shape::kStageScales;
    const float gate_scale = stage_scales[Shape::kRows];
    const float up_scale = stage_scales[Shape::kRows + 1];
    float2 row_scales[Shape::kRows / 8];
#pragma unroll
    for (int j = 0; j < Shape::kRows / 8; ++j) {
      row_scales[j] = *reinterpret_cast<const float2*>(stage_scales + 8 * j + lane % 4 * 2);
    }
    mma_wait<0>();
    ring.release(stage);
#pragma unroll
    for (int block = 0; block < Shape::kRowBlocks; ++block) {
      pin_registers(part[block]);
#pragma unroll
      for (int j = 0; j < Shape::kRows / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float scale = (i % 2 == 0 ? row_scales[j].x : row_scales[j].y) *
                              (i / 2 == 0 ? gate_scale : up_scale);
          sums[block][4 * j + i] += scale * part[block][4 * j + i];
        }
      }
    }
    position.advance();
  }
}

__device__ inline float swiglu(float gate, float up) { return gate / (1.0F + __expf(-gate)) * up; }

/// Stages the results of rows first_row .. + kStagedRows - 1 as [row][output]. In gate/up a thread
/// holds the gate of a hidden value and, 8 weights' rows further, its up.
template <typename Shape, int kFirstRow>
__device__ void stage_rows(const float (&sums)[Shape::kRowBlocks][Shape::kRows / 2],
                           float* staged) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroupThreads / kWarpThreads;
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  float* row = staged + lane % 4 * 2 * Shape::kStagedStride;
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) {
    const int first_weight_row = (warpgroup * Shape::kRowBlocks + block) * kMmaRows + warp * 16;
#pragma unroll
    for (int j = 0; j < Shape::kStagedRows / 8; ++j) {
      const float* sum = sums[block] + kFirstRow / 2 + 4 * j;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* to = row + (8 * j + i) * Shape::kStagedStride;
        if constexpr (Shape::kGateUp) {
          to[first_weight_row / 2 + lane / 4] = swiglu(sum[i], sum[i + 2]);
        } else {
          to[first_weight_row + lane / 4] = sum[i];
          to[first_weight_row + lane / 4 + 8] = sum[i + 2];
        }
      }
    }
  }
}

__device__ inline void store_bf16(void* to, float4 values) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(values.x, values.y),
                                   __floats2bfloat162_rn(values.z, values.w)};
  *static_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
}

/// A warp holds the 128 values of a group, four a lane.
__device__ inline void store_quantised(void* to, float* scale_to, float4 values, int lane) {
  float largest =
      fmaxf(fmaxf(fabsf(values.x), fabsf(values.y)), fmaxf(fabsf(values.z), fabsf(values.w)));
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
  }
  const float scale = largest > 0.0F ? largest / layout::kLargestE4M3 : 1.0F;
  const auto low = __nv_cvt_float2_to_fp8x2(make_float2(values.x / scale, values.y / scale),
                                            __NV_SATFINITE, __NV_E4M3);
  const auto high = __nv_cvt_float2_to_fp8x2(make_float2(values.z / scale, values.w / scale),
                                             __NV_SATFINITE, __NV_E4M3);
  *static_cast<std::uint32_t*>(to) = low | static_cast<std::uint32_t>(high) << 16;
  if (lane == 0) {
    *scale_to = scale;
  }
}

/// Stores `num_rows` staged rows, the first of which is route `first_route`.
template <typename Shape>
__device__ void store_rows(const GroupedArgs& args, const float* staged, int weight_tile,
                           int first_route, int num_rows) {
  constexpr int kVectors = Shape::kOutputs / kVectorOutputs;
  static_assert(!Shape::kScaled || kVectors == kWarpThreads);
  for (int i = threadIdx.x; i < num_rows * kVectors; i += kConsumers) {
    const int row = i / kVectors;
    const int output = i % kVectors * kVectorOutputs;
    const float4 values =
        *reinterpret_cast<const float4*>(staged + row * Shape::kStagedStride + output);
    const std::int64_t route = first_route + row;
    const std::int64_t offset = route * args.outputs + weight_tile * Shape::kOutputs + output;
    auto* to = static_cast<std::byte*>(args.output);
    if constexpr (Shape::kGateUp && Shape::kScaled) {
      const std::int64_t group =
          route * (args.outputs / Shape::kOutputs) + weight_tile;  // a tile is one group wide
      store_quantised(to + offset, args.output_scales + group, values, i % kVectors);
    } else if (Shape::kGateUp || args.output_dtype == DType::kBFloat16) {
      store_bf16(to + offset * sizeof(bf16), values);
    } else {
      *reinterpret_cast<float4*>(to + offset * sizeof(float)) = values;
    }
  }
}

/// Stages and stores a tile, kStagedRows rows at a time.
template <typename Shape, int kFirstRow = 0>
__device__ void store_tile(const GroupedArgs& args, const WorkTile& tile,
                           const float (&sums)[Shape::kRowBlocks][Shape::kRows / 2],
                           float* staged) {
  if constexpr (kFirstRow < Shape::kRows) {
    if (kFirstRow >= tile.num_rows) {
      return;
    }
    sync_threads(1, kConsumers);  // the rows before have been read
    stage_rows<Shape, kFirstRow>(sums, staged);
    sync_threads(1, kConsumers);
    store_rows<Shape>(args, staged, tile.weight_tile, tile.first_route + kFirstRow,
                      min(tile.num_rows - kFirstRow, Shape::kStagedRows));
    store_tile<Shape, kFirstRow + Shape::kStagedRows>(args, tile, sums, staged);
  }
}

template <typename Shape>
__device__ void consume_tiles(const GroupedArgs& args, const WorkList& work, int num_weight_tiles,
                              const TileRing<Shape::kStages>& ring, const float* scales,
                              float* staged) {
  const int row_begin =
      static_cast<int>(threadIdx.x) / kWarpgroupThreads * Shape::kRowBlocks * kMmaRows;
  const int num_steps = args.k / Shape::kStepK;
  RingPosition<Shape::kStages> position;
  const int num_tiles = work.tile_begin[args.num_experts];
  for (int index = blockIdx.x; index < num_tiles; index += gridDim.x) {
    const auto tile = work.tile<Shape::kRows>(index, args.num_experts, num_weight_tiles);
    float sums[Shape::kRowBlocks][Shape::kRows / 2] = {};
    if constexpr (Shape::kScaled) {
      multiply_scaled<Shape>(sums, ring, scales, row_begin, position, num_steps);
    } else {
      multiply_bf16<kCopiedByThreads>(sums, ring, row_begin, position, num_steps);
    }
    store_tile<Shape>(args, tile, sums, staged);
  }
}

/// Resident blocks, each with two warpgroups that multiply and one that copies ahead of them, into
/// the next tile too.
template <typename Shape>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap weights_map, GroupedArgs args) {
  extern __shared__ std::byte shared_memory[];
  __shared__ std::uint64_t full[Shape::kStages];
  __shared__ std::uint64_t empty[Shape::kStages];
  __shared__ WorkList work;
  const std::uint32_t misaligned = shared_address(shared_memory) % kSwizzleAtomBytes;
  std::byte* weights = shared_memory + (misaligned == 0 ? 0 : kSwizzleAtomBytes - misaligned);
  std::byte* activations = weights + Shape::kStages * Shape::kWeightBytes;
  auto* staged = reinterpret_cast<float*>(activations + Shape::kStages * Shape::kActivationBytes);
  float* scales = staged + Shape::kStagedBytes / sizeof(float);
  const TileRing<Shape::kStages> ring = {
      weights, activations, Shape::kWeightBytes, Shape::kActivationBytes, full, empty};
  const int num_weight_tiles = args.outputs / Shape::kOutputs;

  if (threadIdx.x < kWarpThreads) {
    work.build<Shape::kRows>(args, num_weight_tiles);
  } else if (threadIdx.x == kWarpThreads) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(&full[stage], 1 + kProducers);
      barrier_init(&empty[stage], kConsumers / kWarpThreads);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    produce_tiles<Shape>(args, &weights_map, work, num_weight_tiles, ring, scales);
  } else {
    consume_tiles<Shape>(args, work, num_weight_tiles, ring, scales, staged);
  }
}

/// The weights of all experts, so that one copy brings a tile's rows in the order in which the
/// multiplying threads want them: gate/up alternates 8 gate rows and their 8 up rows.
template <typename Shape>
Status make_weights_map(const ExpertFfnParams& params, CUtensorMap* map) {
  const std::int64_t value_bytes = Shape::kScaled ? 1 : 2;
  const std::int64_t k = Shape::kGateUp ? params.hidden_dim : params.intermediate_dim;
  const std::int64_t outputs = Shape::kGateUp ? params.intermediate_dim : params.hidden_dim;
  const std::int64_t halves = Shape::kGateUp ? 2 : 1;
  const std::int64_t row_bytes = k * value_bytes;
  const std::array<TensorMapDim, 5> dims = {
      TensorMapDim{k, 0, Shape::kStepK}, TensorMapDim{8, row_bytes, 8},
      TensorMapDim{halves, outputs * row_bytes, static_cast<int>(halves)},
      TensorMapDim{outputs / 8, 8 * row_bytes, Shape::kOutputs / 8},
      TensorMapDim{params.num_experts, halves * outputs * row_bytes, 1}};
  return make_tensor_map(map, params.weights.dtype,
                         Shape::kGateUp ? params.weights.gate_up : params.weights.down, dims);
}

Status count_multiprocessors(int* count) {
  int device = 0;
  if (Status status = check_cuda(cudaGetDevice(&device), "cudaGetDevice"); !status.is_ok()) {
    return status;
  }
  return check_cuda(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device),
                    "cudaDeviceGetAttribute");
}

template <typename Shape>
Status launch_shape(const ExpertFfnParams& params, cudaStream_t stream) {
  GroupedArgs args{};
  args.expert_begin = params.routes.expert_begin;
  args.num_experts = static_cast<int>(params.num_experts);
  args.max_routes = static_cast<int>(params.max_routes);
  if (Shape::kGateUp) {
    args.route_tokens = params.routes.route_tokens;
    args.token_rows = params.token_rows;
    args.weight_scales = params.weights.gate_up_scales;
    args.output = params.hidden;
    args.output_scales = params.hidden_scales;
    args.k = static_cast<int>(params.hidden_dim);
    args.outputs = static_cast<int>(params.intermediate_dim);
  } else {
    args.input = static_cast<const std::byte*>(params.hidden);
    args.input_scales = params.hidden_scales;
    args.weight_scales = params.weights.down_scales;
    args.output = params.route_outputs;
    args.output_dtype = params.output_dtype;
    args.k = static_cast<int>(params.intermediate_dim);
    args.outputs = static_cast<int>(params.hidden_dim);
  }
  int num_ctas = params.num_ctas;
  if (num_ctas == 0) {
    if (Status status = count_multiprocessors(&num_ctas); !status.is_ok()) {
      return status;
    }
  }
  CUtensorMap weights_map;
  if (Status status = make_weights_map<Shape>(params, &weights_map); !status.is_ok()) {
    return status;
  }
  auto* kernel = grouped_gemm_kernel<Shape>;
  if (Status status = allow_shared_bytes(kernel, Shape::kSharedBytes, "grouped_gemm_kernel");
      !status.is_ok()) {
    return status;
  }
  const std::int64_t most_tiles = params.max_routes * (args.outputs / Shape::kOutputs);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(num_ctas, most_tiles)));
  shape.block = dim3(kGroupedThreads);
  shape.shared_bytes = Shape::kSharedBytes;
  return launch(kernel, shape, stream, "grouped_gemm_kernel", weights_map, args);
}

Status check(const ExpertFfnParams& params) {
  const bool scaled = params.weights.dtype == DType::kFloat8E4M3;
  const auto bad_dim = [](std::int64_t dim) { return dim <= 0 || dim % 128 != 0; };
  if (bad_dim(params.hidden_dim) || bad_dim(params.intermediate_dim) || params.num_experts <= 0 ||
      params.num_experts > kMaxLocalExperts || params.max_routes < 0) {
    return {StatusCode::kInvalidArgument,
            "expert FFN: hidden and intermediate must be multiples of 128 and there are 1 .. " +
                std::to_string(kMaxLocalExperts) + " local experts, got " +
                std::to_string(params.hidden_dim) + ", " + std::to_string(params.intermediate_dim) +
                " and " + std::to_string(params.num_experts)};
  }
  if (!scaled && params.weights.dtype != DType::kBFloat16) {
    return {StatusCode::kInvalidArgument,
            std::string("expert FFN: weights are bfloat16 or float8_e4m3, got ") +
                to_string(params.weights.dtype)};
  }
  if (params.output_dtype != DType::kBFloat16 && params.output_dtype != DType::kFloat32) {
    return {StatusCode::kInvalidArgument,
            std::string("expert FFN: outputs are bfloat16 or float32, got ") +
                to_string(params.output_dtype)};
  }
  return Status::ok();
}

/// Few tokens an expert: small tiles. Reading the weights hides tiles of up to 64 rows, so the
/// choice may be wrong by much (the bucket counts routes that go to other servers) at little cost.
template <GroupedOp kOp>
Status launch_grouped(const ExpertFfnParams& params, cudaStream_t stream) {
  if (Status status = check(params); !status.is_ok()) {
    return status;
  }
  constexpr std::int64_t kFewRoutes = 4;
  constexpr std::int64_t kSomeRoutes = 20;
  constexpr std::int64_t kManyRoutes = 64;
  const std::int64_t routes_per_expert = params.max_routes / params.num_experts;
  if (params.weights.dtype == DType::kFloat8E4M3) {
    if (routes_per_expert <= kFewRoutes) {
      return launch_shape<GroupedShape<MmaType::kFloat8E4M3, kOp, 16>>(params, stream);
    }
    if (routes_per_expert <= kSomeRoutes) {
      return launch_shape<GroupedShape<MmaType::kFloat8E4M3, kOp, 32>>(params, stream);
    }
    return launch_shape<GroupedShape<MmaType::kFloat8E4M3, kOp, 64>>(params, stream);
  }
  if (routes_per_expert <= kFewRoutes) {
    return launch_shape<GroupedShape<MmaType::kBFloat16, kOp, 16>>(params, stream);
  }
  if (routes_per_expert <= kManyRoutes) {
    return launch_shape<GroupedShape<MmaType::kBFloat16, kOp, 64>>(params, stream);
  }
  return launch_shape<GroupedShape<MmaType::kBFloat16, kOp, 128>>(params, stream);
}

}  // namespace

Status launch_expert_gate_up(const ExpertFfnParams& params, device::CudaStream stream) {
  return launch_grouped<GroupedOp::kGateUp>(params, stream);
}

Status launch_expert_down(const ExpertFfnParams& params, device::CudaStream stream) {
  return launch_grouped<GroupedOp::kDown>(params, stream);
}

}  // namespace fastfd::kernels::cuda
