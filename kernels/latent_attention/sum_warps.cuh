#pragma once

#include "kernels/latent_attention/block.cuh"

namespace fastfd::kernels::cuda::latent {

/// One of the two warpgroups that sum latent rows by their weights, each for half of the dims. Each
/// also loads its half of the rows, and half of the rotated keys, of later tiles: where it has
/// summed a tile there is room, for those who score have been there before.
class SumWarps {
 public:
  __device__ SumWarps(const Arguments& args, Shared& shared)
      : args_(args), shared_(shared), half_(static_cast<int>(threadIdx.x) / kWarpgroupSize - 1) {}

  __device__ void run() {
    find_next_item(0);
    for (int stage = 0; stage < kStages; ++stage) {
      load_next(stage);
    }
    for (std::uint32_t count = 0; wait_for_item(shared_, count) != nullptr; ++count) {
      while (!sum_tile()) {
      }
      const int slot = slot_of<kItemSlots>(count);
      store(shared_.items[slot]);
      barrier_arrive(&shared_.items_empty[slot]);
    }
    wait_copies<0>();  // nothing is written behind the block's back
  }

 private:
  static constexpr int kHalfDim = kLatentDim / 2;
  static constexpr int kHalfSlices = kHalfDim / 64;
  static constexpr int kSums = kHalfDim / 2;             ///< of a thread
  static constexpr int kChunks = kSwizzleRowBytes / 16;  ///< of a slice's row
  static constexpr int kRowsAtOnce = kWarpgroupSize / kChunks;
  static_assert(kTileTokens == 2 * kRowsAtOnce);

  /// The sums fill the registers. What is made of this number is made again where it is used, since
  /// the compiler can't tell that it is the same: kept, it would be spilled, and there is hardly
  /// any L1 cache beside the shared memory.
  static __device__ __forceinline__ int opaque_thread() {
    int thread = 0;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  /// In the warpgroup.
  static __device__ __forceinline__ int thread() { return opaque_thread() % kWarpgroupSize; }
  /// The first of the thread's two queries; the other is 8 further down.
  static __device__ __forceinline__ int first_row() {
    return thread() / kWarpSize * 16 + thread() % kWarpSize / 4;
  }

  /// True at the end of an item.
  __device__ __forceinline__ bool sum_tile() {
    const int stage = slot_of<kStages>(num_tiles_);
    const int slot = slot_of<2>(num_tiles_);
    barrier_wait(&shared_.tokens_full[stage], parity_of<kStages>(num_tiles_));
    barrier_wait(&shared_.weights_full[slot], parity_of<2>(num_tiles_));
    ++num_tiles_;
    const std::uint32_t flags = shared_.flags[slot];
    add(stage, slot, (flags & kFirstOfSplit) != 0);
    if ((flags & kLastOfSplit) != 0) {
      end_split(slot, flags);
    }
    barrier_arrive(&shared_.weights_empty[slot]);
    sync_threads(kFirstBarrier + half_, kWarpgroupSize);  // nobody reads the tokens any more
    load_next(stage);
    return (flags & kLastOfItem) != 0;
  }

  /// Where this thread's two tokens of the tile that is loaded next are; behind the item's last one
  /// nowhere.
  __device__ __forceinline__ void find_rows(const Item& item) {
    const auto page_size = static_cast<std::uint32_t>(args_.latents.page_size);
    const int page_shift = __ffs(static_cast<int>(page_size)) - 1;
    const PageId* pages = args_.latents.page_tables + item.span.slot * args_.latents.pages_per_slot;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token =
          item.begin + loaded_tiles_ * kTileTokens + i * kRowsAtOnce + thread() / kChunks;
      rows_[i] = token < item.end ? __ldg(pages + (token >> page_shift)) * page_size +
                                        (static_cast<std::uint32_t>(token) & (page_size - 1))
                                  : kNoRow;
    }
  }

  __device__ __forceinline__ void find_next_item(std::uint32_t count) {
    const Item* item = wait_for_item(shared_, count);
    loaded_count_ = count;
    loaded_tiles_ = item == nullptr ? -1 : 0;
    if (item != nullptr) {
      find_rows(*item);
    }
  }

  /// Loads the next tile that was not loaded yet, of this item or a later one.
  __device__ __forceinline__ void load_next(int stage) {
    // Not before: the next item is handed out when this one's last tiles are under way.
    if (loaded_tiles_ == shared_.items[slot_of<kItemSlots>(loaded_count_)].num_tiles()) {
      find_next_item(loaded_count_ + 1);
    }
    if (loaded_tiles_ < 0) {
      return;
    }
    const int chunk = thread() % kChunks;
    const std::uint32_t to = shared_address(shared_.tokens[stage]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = rows_[i] != kNoRow;
      const bf16* from =
          args_.latents.rows + std::size_t{exists ? rows_[i] : 0} * kLatentRowDim + chunk * 8;
      const std::uint32_t at = to + swizzled_offset(i * kRowsAtOnce + thread() / kChunks, chunk);
#pragma unroll
      for (int j = 0; j < kHalfSlices; ++j) {
        const int slice = half_ * kHalfSlices + j;
        copy_async(at + slice * kTokenSliceBytes, from + slice * 64, exists);
      }
      if (i == half_) {
        constexpr int kRopeSlice = kSlices - 1;
        copy_async(at + kRopeSlice * kTokenSliceBytes, from + kRopeSlice * 64, exists);
      }
    }
    barrier_arrive_after_copies(&shared_.tokens_full[stage]);
    ++loaded_tiles_;
    find_rows(shared_.items[slot_of<kItemSlots>(loaded_count_)]);
  }

  /// sums = sums * factors + weights * tokens. Both are visible to the tensor cores: whoever scored
  /// has seen the tokens and fenced before it handed out the weights. A fence here would wait for
  /// the copies that this thread has under way.
  __device__ __forceinline__ void add(int stage, int slot, bool is_first) {
    if (!is_first) {
      const float factors[2] = {shared_.factors[slot][first_row()],
                                shared_.factors[slot][first_row() + 8]};
      // Mostly nothing larger came.
      if (__any_sync(kAllLanes, factors[0] != 1.0F || factors[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums_[i] *= factors[i % 4 / 2];
        }
      }
    }
    const std::uint64_t weights = tile_descriptor(shared_.weights);
    const std::uint64_t tokens = transposed_descriptor(
        shared_.tokens[stage] + half_ * kHalfSlices * kTokenSliceBytes, kTokenSliceBytes);
    pin_registers(sums_);
    mma_fence();
#pragma unroll
    for (int step = 0; step < kTileTokens / 16; ++step) {
      TransposedMma::issue(sums_, k_step(weights, slot * (kTileTokens / 16) + step),
                           tokens + (step * TransposedMma::kStepBytes >> 4), !is_first || step > 0);
    }
    mma_commit();
    mma_wait<0>();
    pin_registers(sums_);
  }

  /// Merges a split into what the block has of the splits before, which lies in device memory. The
  /// same operations as those of the merge kernel.
  __device__ __forceinline__ void end_split(int slot, std::uint32_t flags) {
    const bool is_first = (flags & kInFirstSplit) != 0;
    const bool is_last = (flags & kLastOfItem) != 0;
    const SoftmaxState states[2] = {shared_.states[slot][first_row()],
                                    shared_.states[slot][first_row() + 8]};
    if (is_first) {
      merged_[0] = states[0];
      merged_[1] = states[1];
    }
    if (is_first && is_last) {
      return;
    }
    auto* before = reinterpret_cast<float4*>(args_.work.block_sums) +
                   std::size_t{blockIdx.x} * (kTileQueries * kLatentDim / 4) +
                   (opaque_thread() - kWarpgroupSize);
    if (!is_first) {
      MergeFactors factors[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        factors[row] = merge_split(merged_[row], states[row]);
      }
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const float4 sum = before[i * kSumThreads];
        sums_[4 * i] = merge_value(sum.x, sums_[4 * i], factors[0]);
        sums_[4 * i + 1] = merge_value(sum.y, sums_[4 * i + 1], factors[0]);
        sums_[4 * i + 2] = merge_value(sum.z, sums_[4 * i + 2], factors[1]);
        sums_[4 * i + 3] = merge_value(sum.w, sums_[4 * i + 3], factors[1]);
      }
    }
    if (!is_last) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        before[i * kSumThreads] =
            make_float4(sums_[4 * i], sums_[4 * i + 1], sums_[4 * i + 2], sums_[4 * i + 3]);
      }
    }
  }

  __device__ void store(const Item& item) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = item.first_query + first_row() + 8 * row;
      if (query >= item.num_queries) {
        continue;
      }
      const int first_dim = half_ * kHalfDim + thread() % 4 * 2;
      if (item.is_part) {
        const std::int64_t index = std::int64_t{item.first_row_split} * args_.num_heads + query;
        if (half_ == 0 && thread() % 4 == 0) {
          args_.work.states[index] = merged_[row];
        }
        float* to = args_.work.sums + index * kLatentDim + first_dim;
#pragma unroll
        for (int i = 0; i < kHalfDim / 8; ++i) {
          *reinterpret_cast<float2*>(to + 8 * i) =
              make_float2(sums_[4 * i + 2 * row], sums_[4 * i + 2 * row + 1]);
        }
      } else {
        const float factor = __frcp_rn(merged_[row].total);
        bf16* to = args_.out +
                   (std::int64_t{item.span.first_row} * args_.num_heads + query) * kLatentDim +
                   first_dim;
#pragma unroll
        for (int i = 0; i < kHalfDim / 8; ++i) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * i) =
              Bf16Kv::pack(__fmul_rn(sums_[4 * i + 2 * row], factor),
                           __fmul_rn(sums_[4 * i + 2 * row + 1], factor));
        }
      }
    }
  }

  static constexpr int kFirstBarrier = 2;

  const Arguments& args_;
  Shared& shared_;
  int half_;
  std::uint32_t num_tiles_ = 0;     // summed so far
  std::uint32_t loaded_count_ = 0;  // of the item whose tokens are loaded next
  int loaded_tiles_ = 0;            // of it; -1: there is none
  std::uint32_t rows_[2];
  float sums_[kSums];
  SoftmaxState merged_[2];
};

}  // namespace fastfd::kernels::cuda::latent
