#pragma once

#include "kernels/latent_attention/block.cuh"

namespace fastfd::kernels::cuda::latent {

/// Takes items from the lists of the step's schedule and hands them to all warps of the block: one
/// thread. An item is taken when the one before it begins: a block that gets onto the GPU last,
/// because a waiting kernel sits where it belongs, must not hold any.
class ItemSource {
 public:
  __device__ ItemSource(const Arguments& args, Shared& shared) : args_(args), shared_(shared) {}

  /// Nothing once there is no further item.
  __device__ void hand_out_next() {
    if (is_exhausted_) {
      return;
    }
    const int slot = slot_of<kItemSlots>(count_);
    const AttentionCounters& counters = *args_.work.counters;
    const std::uint32_t index = atomicAdd(&args_.work.counters->next_split, 1);
    is_exhausted_ = index >= counters.num_tile_items + counters.num_split_items;
    const Item item = is_exhausted_ ? Item{} : find(index);
    barrier_wait(&shared_.items_empty[slot], parity_of<kItemSlots>(count_) ^ 1);
    shared_.items[slot] = item;
    barrier_arrive(&shared_.items_full[slot]);
    ++count_;
  }

 private:
  __device__ Item find(std::uint32_t index) const {
    const std::uint32_t num_tile_items = args_.work.counters->num_tile_items;
    Item item;
    std::uint32_t query_tile = 0;
    if (index < num_tile_items) {
      const TileItem tile = args_.work.tile_items[index];
      item.span = args_.spans[tile.span];
      query_tile = tile.query_tile;
    } else {
      const SplitItem split = args_.work.split_items[index - num_tile_items];
      item.span = args_.spans[split.span];
      query_tile = split.query_tile;
      item.begin = static_cast<int>(split.split) * kLatentSplitTokens;
      item.is_part = item.span.start_position + item.span.num_rows > kLatentSplitTokens;
      item.first_row_split = split.first_row_split + split.split * item.span.num_rows;
    }
    item.first_query = static_cast<int>(query_tile) * kTileQueries;
    item.num_queries = static_cast<int>(item.span.num_rows) * args_.num_heads;
    // Later queries of a span see more; those of an early tile may see nothing of a late split.
    item.end = item.limit(item.first_query + kTileQueries - 1, args_.num_heads);
    if (index >= num_tile_items) {
      item.end = max(min(item.end, item.begin + kLatentSplitTokens), item.begin + 1);
    }
    return item;
  }

  const Arguments& args_;
  Shared& shared_;
  std::uint32_t count_ = 0;
  bool is_exhausted_ = false;
};

}  // namespace fastfd::kernels::cuda::latent
