#pragma once

/// The consumer's half of a GEMM pipeline: tiles arrive in a ring of shared-memory stages, a
/// warpgroup multiplies them. Weights are the rows of the product and activations its columns
/// ("swapped"), because an instruction always takes 64 rows but as few as 8 columns: a batch of one
/// wastes nothing that matters, and batches of all sizes sum in the same order.

#include <cstdint>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace fastfd::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kMmaRows = 64;  ///< weights' rows that one instruction multiplies

/// Shared memory of a pipeline. A stage holds one 128-byte step of k.
template <int kStages>
struct TileRing {
  std::byte* weights;      ///< [kStages, weight_bytes], swizzled
  std::byte* activations;  ///< [kStages, activation_bytes], swizzled
  int weight_bytes;
  int activation_bytes;
  std::uint64_t* full;   ///< [kStages] the stage's tiles have landed
  std::uint64_t* empty;  ///< [kStages] every consumer warp has read them

  __device__ std::byte* weight_stage(int stage) const { return weights + stage * weight_bytes; }
  __device__ std::byte* activation_stage(int stage) const {
    return activations + stage * activation_bytes;
  }
  /// Waits for the tiles of a stage. What threads copied (cp.async) must cross to the proxy through
  /// which the tensor cores read shared memory; the copy engine's tiles are on that side already.
  template <bool kCopiedByThreads>
  __device__ void wait_for(const RingPosition<kStages>& position) const {
    barrier_wait(&full[position.stage], position.parity);
    if constexpr (kCopiedByThreads) {
      async_proxy_fence();
    }
  }
  /// A consumer warp is done with the stage.
  __device__ void release(int stage) const {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) {
      barrier_arrive(&empty[stage]);
    }
  }
};

/// bf16: sums[b] = weights[row_begin + 64 b .. + 63] * activations^T over the next `num_steps`
/// stages (at least one). The sum runs over k in ascending order, whatever the shape of the tile.
template <bool kCopiedByThreads, int kRowBlocks, int kSums, int kStages>
__device__ void multiply_bf16(float (&sums)[kRowBlocks][kSums], const TileRing<kStages>& ring,
                              int row_begin, RingPosition<kStages>& position, int num_steps) {
  int previous_stage = 0;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = position.stage;
    ring.template wait_for<kCopiedByThreads>(position);
    const std::uint64_t columns = tile_descriptor(ring.activation_stage(stage));
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      pin_registers(sums[block]);
    }
    mma_fence();
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      const std::uint64_t rows = tile_descriptor(ring.weight_stage(stage) +
                                                 (row_begin + block * kMmaRows) * kSwizzleRowBytes);
#pragma unroll
      for (int i = 0; i < kMmasPerRow; ++i) {
        Mma<MmaType::kBFloat16, 2 * kSums>::issue(sums[block], k_step(rows, i), k_step(columns, i),
                                                  step + i > 0);
      }
    }
    mma_commit();
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      pin_registers(sums[block]);
    }
    if (step > 0) {
      mma_wait<1>();  // the tensor cores keep one step queued
      ring.release(previous_stage);
    }
    previous_stage = stage;
    position.advance();
  }
  mma_wait<0>();
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
    pin_registers(sums[block]);
  }
  ring.release(previous_stage);
}

}  // namespace fastfd::kernels::cuda
