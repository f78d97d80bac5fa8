#pragma once

/// What the warpgroups of a latent attention block share: arguments, shared memory, and the items
/// of work that they go through together, each at its own pace.

#include "kernels/attention/attention_common.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/latent_attention/op_cuda.h"

namespace fastfd::kernels::cuda::latent {

inline constexpr int kTileQueries = kLatentTileQueries;
inline constexpr int kTileTokens = 32;
inline constexpr int kStages = 4;
inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroups = 3;  ///< one of scores, two of sums
inline constexpr int kThreads = kWarpgroups * kWarpgroupSize;
inline constexpr int kSumThreads = 2 * kWarpgroupSize;
/// The block leaves 4096 of an SM's registers to a kernel that waits there.
inline constexpr int kMaxRegisters = (65536 - 4096) / kThreads / 8 * 8;

/// Rows lie in slices of 64 dims, 128 bytes of each row behind those of the row before.
inline constexpr int kSlices = kLatentRowDim / 64;
inline constexpr int kQuerySliceBytes = kTileQueries * kSwizzleRowBytes;
inline constexpr int kTokenSliceBytes = kTileTokens * kSwizzleRowBytes;
inline constexpr int kStageBytes = kSlices * kTokenSliceBytes;
static_assert(kLatentSplitTokens % kTileTokens == 0);

struct Arguments {
  AttentionWork work;
  const layout::AbortState* abort;
  const layout::LaneSpan* spans;
  PagedLatents latents;
  const bf16* queries;
  bf16* out;
  float scale;  ///< times log2(e)
  int num_heads;
};

/// 64 queries against a part of their context, or all of it.
struct Item {
  layout::LaneSpan span;
  int first_query = 0;  ///< of the span's queries
  int num_queries = 0;  ///< of the span: its rows times heads; 0: there is no further item
  int begin = 0;        ///< tokens, at least one
  int end = 0;
  bool is_part = false;               ///< goes to the merge kernel
  std::uint32_t first_row_split = 0;  ///< is_part: of the split's first row

  __device__ int num_tiles() const { return (end - begin + kTileTokens - 1) / kTileTokens; }
  /// How many of the sequence's tokens a query sees; of one that does not exist, what the last
  /// does.
  __device__ int limit(int query, int num_heads) const {
    return static_cast<int>(span.start_position) + min(query, num_queries - 1) / num_heads + 1;
  }
};

/// Items are handed out before they are needed. Tokens are loaded up to kStages tiles ahead, each
/// of which may be an item of its own.
inline constexpr int kItemSlots = 8;
static_assert(kItemSlots > kStages + 2);

/// What a tile is to the sums.
enum TileFlags : std::uint32_t {
  kFirstOfSplit = 1,
  kLastOfSplit = 2,
  kLastOfItem = 4,
  kInFirstSplit = 8,
};

struct Shared {
  alignas(kSwizzleAtomBytes) std::byte queries[kSlices * kQuerySliceBytes];
  alignas(kSwizzleAtomBytes) std::byte tokens[kStages][kStageBytes];
  /// Weights of two tiles' tokens side by side, bf16: a tile has half of each row's 128 bytes.
  alignas(kSwizzleAtomBytes) std::byte weights[kTileQueries * kSwizzleRowBytes];
  std::uint32_t flags[2];                ///< TileFlags
  float factors[2][kTileQueries];        ///< of what was summed before the tile
  SoftmaxState states[2][kTileQueries];  ///< of a whole split, with its last tile
  Item items[kItemSlots];
  std::uint64_t items_full[kItemSlots], items_empty[kItemSlots];
  std::uint64_t tokens_full[kStages];
  std::uint64_t weights_full[2], weights_empty[2];

  /// Every thread arrives for itself: one for its warp would do, but racecheck does not follow it.
  __device__ void init_barriers() {
    for (int slot = 0; slot < kItemSlots; ++slot) {
      barrier_init(&items_full[slot], 1);
      barrier_init(&items_empty[slot], kThreads);
    }
    for (std::uint64_t& barrier : tokens_full) {
      barrier_init(&barrier, kSumThreads);
    }
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(&weights_full[slot], kWarpgroupSize);
      barrier_init(&weights_empty[slot], kSumThreads);
    }
    barrier_init_fence();
  }
};
static_assert(sizeof(Shared) <= 227 * 1024);

/// Place in a ring of kCount, and the parity of its barriers' current phase, by a count of what
/// went before.
template <int kCount>
__device__ __forceinline__ int slot_of(std::uint32_t count) {
  return static_cast<int>(count % kCount);
}
template <int kCount>
__device__ __forceinline__ std::uint32_t parity_of(std::uint32_t count) {
  return count / kCount % 2;
}

/// Item number `count` of the block; nullptr if it does not exist.
__device__ __forceinline__ const Item* wait_for_item(Shared& shared, std::uint32_t count) {
  const int slot = slot_of<kItemSlots>(count);
  barrier_wait(&shared.items_full[slot], parity_of<kItemSlots>(count));
  return shared.items[slot].num_queries == 0 ? nullptr : &shared.items[slot];
}

}  // namespace fastfd::kernels::cuda::latent
