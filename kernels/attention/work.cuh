#pragma once

/// How a step's attention is cut into work, in device memory: made by the schedule kernel, read by
/// the kernels of every layer.

#include <cstdint>
#include <string>

#include "kernels/attention/op_cuda.h"
#include "kernels/attention/query_tile.cuh"

namespace fastfd::kernels::cuda {

/// Queries that one block takes at a time.
constexpr int queries_per_block(std::int64_t head_dim) {
  return attention_warps(head_dim) * kQueriesPerWarp;
}
/// Spans with at most so many queries a KV head (64) are cut over their context, so that decode
/// fills the GPU; longer ones are cut over their queries.
inline constexpr int kMaxSplitQueryTiles = 4;

/// The same of latent attention, where a block takes either kind of item. A split costs more there:
/// partial results are 512 wide.
inline constexpr int kLatentSplitTokens = 1024;
inline constexpr int kLatentTileQueries = 64;
inline constexpr int kMaxLatentSplitTiles = 8;
/// Blocks of a latent attention's grid at most: an SM's memory holds one.
inline constexpr std::int64_t kMaxLatentBlocks = 144;

/// How spans are cut.
struct AttentionTiling {
  std::uint32_t split_tokens;
  std::uint32_t split_queries;    ///< of a SplitItem
  std::uint32_t tile_queries;     ///< of a TileItem
  std::uint32_t max_split_tiles;  ///< of split_queries: longer spans are cut over their queries

  static AttentionTiling of(const AttentionBucket& bucket) {
    if (bucket.is_latent) {
      return {kLatentSplitTokens, kLatentTileQueries, kLatentTileQueries, kMaxLatentSplitTiles};
    }
    return {kSplitTokens, kQueriesPerWarp,
            static_cast<std::uint32_t>(queries_per_block(bucket.head_dim)), kMaxSplitQueryTiles};
  }
};

/// Queries of a KV head in a span are its rows times the heads of the group, row-major.
struct SplitItem {
  std::uint32_t span;
  std::uint32_t split;            ///< of split_tokens, ascending position
  std::uint32_t query_tile;       ///< of split_queries
  std::uint32_t first_row_split;  ///< of the span: (split s, row r) is at first + s * num_rows + r
};

struct TileItem {
  std::uint32_t span;
  std::uint32_t query_tile;  ///< of tile_queries
};

/// A row whose context has more than one split.
struct MergeItem {
  std::uint32_t row;
  std::uint32_t num_splits;
  std::uint32_t first_row_split;
  std::uint32_t stride;  ///< row splits from one split to the next
};

struct AttentionCounters {
  std::uint32_t num_split_items;
  std::uint32_t num_tile_items;
  std::uint32_t num_merge_items;
  alignas(128) std::uint32_t next_split;  ///< taken by a layer's kernel; 0 between layers
  alignas(128) std::uint32_t next_tile;
};

/// The parts of an AttentionWorkspace.
struct AttentionWork {
  std::int64_t max_split_items;
  std::int64_t max_tile_items;
  std::int64_t max_merge_items;
  AttentionCounters* counters;
  SplitItem* split_items;  ///< [max_split_items]
  TileItem* tile_items;    ///< [max_tile_items]
  MergeItem* merge_items;  ///< [max_merge_items]
  SoftmaxState* states;    ///< [max_row_splits, num_q_heads]
  float* sums;             ///< [max_row_splits, num_q_heads, head_dim]
  /// Latent: [kMaxLatentBlocks][kLatentTileQueries * head_dim], what a block has merged so far.
  float* block_sums;
  std::size_t num_bytes;

  static AttentionWork of(const AttentionWorkspace& workspace);
};

/// Empty if the kernels have the shape, else what is wrong with it.
std::string attention_shape_error(const AttentionBucket& bucket);

}  // namespace fastfd::kernels::cuda
