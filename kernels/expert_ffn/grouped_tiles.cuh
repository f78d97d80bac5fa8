#pragma once

/// Shapes, work list and copies of the grouped GEMMs (op_cuda.cu holds what multiplies). A work
/// tile is up to kRows routes of one expert times kWeightRows rows of its weights; the list of
/// tiles is made on the device from the routes' counts, and resident blocks walk it in turns.

#include <algorithm>
#include <cstdint>

#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/gemm/tile_mma.cuh"

namespace fastfd::kernels::cuda {

enum class GroupedOp : std::uint8_t { kGateUp, kDown };

inline constexpr int kProducers = kWarpgroupThreads;
inline constexpr int kConsumerWarpgroups = 2;
inline constexpr int kConsumers = kConsumerWarpgroups * kWarpgroupThreads;
inline constexpr int kGroupedThreads = kConsumers + kProducers;

/// What op_cuda.cu hands its kernels. `outputs`: columns of the result; `k`: of the input.
struct GroupedArgs {
  const std::uint32_t* expert_begin;
  const std::uint32_t* route_tokens;
  const void* const* token_rows;  ///< gate/up: rows gathered through route_tokens
  const std::byte* input;         ///< down: [max_routes, k]
  const float* input_scales;      ///< down, FP8: [max_routes, k / 128]
  const float* weight_scales;     ///< FP8: [num_experts, weight_scale_rows, k / 128]
  void* output;                   ///< [max_routes, outputs]
  float* output_scales;           ///< gate/up, FP8: [max_routes, outputs / 128]
  DType output_dtype;
  int num_experts;
  int max_routes;
  int k;
  int outputs;
};

template <MmaType kMmaType, GroupedOp kGroupedOp, int kTileRows>
struct GroupedShape {
  static constexpr MmaType kType = kMmaType;
  static constexpr GroupedOp kOp = kGroupedOp;
  static constexpr int kRows = kTileRows;
  static constexpr bool kScaled = kType == MmaType::kFloat8E4M3;
  static constexpr bool kGateUp = kOp == GroupedOp::kGateUp;
  static constexpr int kStepK = kSwizzleRowBytes / (kScaled ? 1 : 2);
  /// Blocks of 64 weights' rows a consumer warpgroup has. FP8 gate/up has two, so that a tile holds
  /// whole groups of 128 hidden values, which it requantises.
  static constexpr int kRowBlocks = kGateUp && (kScaled || kRows == 128) ? 2 : 1;
  static constexpr int kWeightRows = kConsumerWarpgroups * kRowBlocks * kMmaRows;
  static constexpr int kOutputs = kGateUp ? kWeightRows / 2 : kWeightRows;
  static constexpr int kWeightBytes = kWeightRows * kSwizzleRowBytes;
  static constexpr int kActivationBytes = kRows * kSwizzleRowBytes;
  /// A stage's scales: of each row, of the gate's and of the up's weights (down: twice the same).
  static constexpr int kStageScales = kScaled ? kRows + 2 : 0;
  /// Results are staged as [row][output], so many rows at once; the padding spreads a warp's stores
  /// over all banks.
  static constexpr int kStagedRows = std::min(kRows, 32);
  static constexpr int kStagedStride = kOutputs + 4;
  static constexpr int kStagedBytes = kStagedRows * kStagedStride * int{sizeof(float)};
  static constexpr int kStageBytes =
      kWeightBytes + kActivationBytes + kStageScales * int{sizeof(float)};
  static constexpr int kRingBudget = 203 * 1024;
  static constexpr int kStages = std::min(8, kRingBudget / kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + kStagedBytes + kSwizzleAtomBytes;
};

struct WorkTile {
  int expert;
  int weight_tile;
  int first_route;
  int num_rows;
};

/// The tiles of all experts in order, as counts before each expert. Within an expert the row tiles
/// of a weight tile are neighbours, so that its second reader finds it in L2.
struct WorkList {
  int route_begin[kMaxLocalExperts + 1];
  int tile_begin[kMaxLocalExperts + 1];

  /// By the whole of one warp.
  template <int kRows>
  __device__ void build(const GroupedArgs& args, int num_weight_tiles) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    int tiles_before = 0;
    for (int first = 0; first < args.num_experts; first += kWarpThreads) {
      const int expert = first + lane;
      int begin = 0;
      int tiles = 0;
      if (expert < args.num_experts) {
        begin = clamped(args.expert_begin[expert], args.max_routes);
        const int end = clamped(args.expert_begin[expert + 1], args.max_routes);
        tiles = (max(end - begin, 0) + kRows - 1) / kRows * num_weight_tiles;
      }
      int through = tiles;
#pragma unroll
      for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const int below = __shfl_up_sync(0xffffffffU, through, distance);
        through += lane >= distance ? below : 0;
      }
      if (expert < args.num_experts) {
        route_begin[expert] = begin;
        tile_begin[expert] = tiles_before + through - tiles;
      }
      tiles_before += __shfl_sync(0xffffffffU, through, kWarpThreads - 1);
    }
    if (lane == 0) {
      route_begin[args.num_experts] = clamped(args.expert_begin[args.num_experts], args.max_routes);
      tile_begin[args.num_experts] = tiles_before;
    }
  }

  template <int kRows>
  __device__ WorkTile tile(int index, int num_experts, int num_weight_tiles) const {
    int low = 0;  // tile_begin[low] <= index < tile_begin[high]
    int high = num_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (tile_begin[middle] <= index ? low : high) = middle;
    }
    const int num_routes = route_begin[low + 1] - route_begin[low];
    const int row_tiles = (tile_begin[low + 1] - tile_begin[low]) / num_weight_tiles;
    const int within = index - tile_begin[low];
    const int first_row = within % row_tiles * kRows;
    return {low, within / row_tiles, route_begin[low] + first_row,
            min(num_routes - first_row, kRows)};
  }

 private:
  /// Counts that an abandoned step left behind must not lead out of the buffers.
  __device__ static int clamped(std::uint32_t route, int max_routes) {
    return static_cast<int>(min(route, static_cast<std::uint32_t>(max_routes)));
  }
};

/// Where one producer thread copies from in a work tile: chunk thread % 8 of every 16th row, and
/// one of the scales. Null: zeros.
template <typename Shape>
struct TileSources {
  static constexpr int kRowsPerThread = Shape::kRows / 16;
  const std::byte* chunks[kRowsPerThread];
  const float* scale = nullptr;  ///< [k / 128]

  __device__ TileSources(const GroupedArgs& args, const WorkTile& tile, int thread) {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int row = thread / 8 + 16 * i;
      chunks[i] = row < tile.num_rows ? source_row(args, tile.first_route + row) + thread % 8 * 16
                                      : nullptr;
    }
    if constexpr (Shape::kScaled) {
      const int k_blocks = args.k / Shape::kStepK;
      if (thread < tile.num_rows) {
        const int route = tile.first_route + thread;
        scale = Shape::kGateUp ? reinterpret_cast<const float*>(source_row(args, route) + args.k)
                               : args.input_scales + static_cast<std::int64_t>(route) * k_blocks;
      } else if (thread == Shape::kRows || thread == Shape::kRows + 1) {
        const std::int64_t up_rows = Shape::kGateUp ? args.outputs / layout::kScaleGroup : 0;
        const std::int64_t expert_rows =
            Shape::kGateUp ? 2 * up_rows : args.outputs / layout::kScaleGroup;
        const std::int64_t row =
            tile.expert * expert_rows + tile.weight_tile + (thread - Shape::kRows) * up_rows;
        scale = args.weight_scales + row * k_blocks;
      }
    }
  }

 private:
  __device__ static const std::byte* source_row(const GroupedArgs& args, int route) {
    if constexpr (Shape::kGateUp) {
      return static_cast<const std::byte*>(args.token_rows[args.route_tokens[route]]);
    } else {
      constexpr int kValueBytes = Shape::kScaled ? 1 : 2;
      return args.input + static_cast<std::int64_t>(route) * args.k * kValueBytes;
    }
  }
};

/// The producer warpgroup: one thread has the copy engine bring the weights, all of them copy rows
/// that lie anywhere. A stage is full when both have landed; nobody here waits for that.
template <typename Shape>
__device__ void produce_tiles(const GroupedArgs& args, const CUtensorMap* weights_map,
                              const WorkList& work, int num_weight_tiles,
                              const TileRing<Shape::kStages>& ring, float* scales) {
  constexpr int kBlockGroups = Shape::kWeightRows / (Shape::kGateUp ? 16 : 8);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int num_steps = args.k / Shape::kStepK;
  const std::uint32_t chunk_offset = swizzled_offset(thread / 8, thread % 8);
  const auto* somewhere = static_cast<const std::byte*>(args.output);  // aligned, never read
  RingPosition<Shape::kStages> position;
  const int num_tiles = work.tile_begin[args.num_experts];
  for (int index = blockIdx.x; index < num_tiles; index += gridDim.x) {
    const auto tile = work.tile<Shape::kRows>(index, args.num_experts, num_weight_tiles);
    const TileSources<Shape> sources(args, tile, thread);
    for (int step = 0; step < num_steps; ++step) {
      const int stage = position.stage;
      barrier_wait(&ring.empty[stage], position.parity ^ 1);
      if (thread == 0) {
        barrier_arrive_expecting(&ring.full[stage], Shape::kWeightBytes);
        copy_tile(ring.weight_stage(stage), weights_map, &ring.full[stage], step * Shape::kStepK, 0,
                  0, tile.weight_tile * kBlockGroups, tile.expert);
      }
      const std::uint32_t to = shared_address(ring.activation_stage(stage)) + chunk_offset;
#pragma unroll
      for (int i = 0; i < TileSources<Shape>::kRowsPerThread; ++i) {
        const std::byte* from = sources.chunks[i];
        copy_16_bytes(to + i * 16 * kSwizzleRowBytes,
                      from == nullptr ? somewhere : from + step * kSwizzleRowBytes,
                      from != nullptr);
      }
      if constexpr (Shape::kScaled) {
        if (thread < Shape::kStageScales) {
          copy_4_bytes(shared_address(scales + stage * Shape::kStageScales + thread),
                       sources.scale == nullptr ? args.weight_scales : sources.scale + step,
                       sources.scale != nullptr);
        }
      }
      barrier_arrive_after_copies(&ring.full[stage]);
      position.advance();
    }
  }
}

}  // namespace fastfd::kernels::cuda
