#pragma once

#include "kernels/attention/attention_common.cuh"

namespace fastfd::kernels::cuda {

/// A block: its queries against all tokens they see, in ascending order.
template <typename Kv, int kHeadDim>
class TileWorker {
  using Shape = AttentionShape<Kv, kHeadDim>;
  using Tile = QueryTile<Kv, kHeadDim>;
  static constexpr int kRowsAtOnce = Shape::kThreads / Tile::kChunks;
  static constexpr int kLoads = (Shape::kTileTokens + kRowsAtOnce - 1) / kRowsAtOnce;
  static_assert(Shape::kTileTokens % kRowsAtOnce == 0);

 public:
  __device__ __forceinline__ TileWorker(const AttentionArguments& args, std::byte* shared)
      : args_(args),
        parked_(shared),
        stages_(shared_address(shared) + Shape::kParkedBytes),
        merged_(reinterpret_cast<float*>(shared + Shape::kParkedBytes +
                                         Shape::kStages * 2 * Shape::kTileBytes) +
                threadIdx.x) {}

  __device__ __forceinline__ void run(const TileItem& item, int kv_head) {
    const layout::LaneSpan span = args_.spans[item.span];
    const int group = args_.num_q_heads / static_cast<int>(args_.kv.num_kv_heads);
    const int first_query = static_cast<int>(item.query_tile) * queries_per_block(kHeadDim);
    const int num_queries = static_cast<int>(span.num_rows) * group;
    const int last_query = min(first_query + queries_per_block(kHeadDim), num_queries) - 1;
    const int block_limit = static_cast<int>(span.start_position) + last_query / group + 1;
    const int num_tiles = (block_limit + Shape::kTileTokens - 1) / Shape::kTileTokens;
    const TokenRows rows(args_.kv, span, kv_head);
    find_rows(rows, 0);
    load(rows, 0, num_tiles);
    load(rows, 1, num_tiles);

    const int warp_query =
        first_query + static_cast<int>(threadIdx.x) / kWarpSize * kQueriesPerWarp;
    const LaneQueries queries(span, warp_query, group, kv_head);
    const int warp_limit =
        warp_query < num_queries ? __shfl_sync(kAllLanes, queries.limit[1], kWarpSize - 1) : 0;
    Tile tile;
    begin_tile(tile, queries, args_, parked_);
    SoftmaxState merged[2];
    for (int i = 0; i < num_tiles; ++i) {
      wait_copies<1>();
      __syncthreads();  // tile i is there, and nobody reads tile i - 1 any more
      load(rows, i + 2, num_tiles);
      const int begin = i * Shape::kTileTokens;
      if (begin < warp_limit) {
        if (begin % kSplitTokens == 0 && begin > 0) {
          merge_into_shared(tile, merged, begin == kSplitTokens);
        }
        const std::uint32_t stage = stages_ + i % Shape::kStages * 2 * Shape::kTileBytes;
        float scores[Shape::kTileTokens / 8][4];
        tile.template score<Shape::kTileTokens>(scores, stage);
        tile.soften(scores, begin);
        tile.template add_values<Shape::kTileTokens>(scores, stage + Shape::kTileBytes);
      }
    }
    if (warp_limit > kSplitTokens) {
      merge_from_shared(tile, merged);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float total = warp_limit > kSplitTokens ? merged[row].total : tile.state(row).total;
      store_output(tile, queries, row, total, args_);
    }
  }

 private:
  __device__ __forceinline__ void find_rows(const TokenRows& rows, int tile) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      next_rows_[i] = rows.row(tile * Shape::kTileTokens + i * kRowsAtOnce +
                               static_cast<int>(threadIdx.x) / Tile::kChunks);
    }
  }

  /// Loads a tile's keys and values, then looks up where those of the next tile are.
  __device__ __forceinline__ void load(const TokenRows& rows, int tile, int num_tiles) {
    if (tile < num_tiles) {
      const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
      const std::uint32_t stage = stages_ + tile % Shape::kStages * 2 * Shape::kTileBytes;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int token = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / Tile::kChunks;
        const std::uint32_t to = stage + chunk_offset<Tile::kChunks>(token, chunk);
        const bool valid = next_rows_[i] != kNoRow;
        const std::size_t offset =
            std::size_t{valid ? next_rows_[i] : 0} * Tile::kRowBytes + chunk * 16;
        copy_async(to, static_cast<const std::byte*>(args_.kv.keys) + offset, valid);
        copy_async(to + Shape::kTileBytes, static_cast<const std::byte*>(args_.kv.values) + offset,
                   valid);
      }
      find_rows(rows, tile + 1);
    }
    commit_copies();
  }

  /// Ends a split; the sums merged so far are this thread's own, in shared memory.
  __device__ __forceinline__ void merge_into_shared(Tile& tile, SoftmaxState (&merged)[2],
                                                    bool is_first) {
    if (!is_first) {
      merge_from_shared(tile, merged);
    } else {
      merged[0] = tile.state(0);
      merged[1] = tile.state(1);
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        merged_[(i * 4 + j) * Shape::kThreads] = tile.sums()[i][j];
      }
    }
    tile.begin_split();
  }

  /// The sums of the tile become those of everything so far.
  __device__ __forceinline__ void merge_from_shared(Tile& tile, SoftmaxState (&merged)[2]) {
    MergeFactors factors[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      factors[row] = merge_split(merged[row], tile.state(row));
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& sum = tile.sums()[i][j];
        sum = merge_value(merged_[(i * 4 + j) * Shape::kThreads], sum, factors[j / 2]);
      }
    }
  }

  const AttentionArguments& args_;
  std::byte* parked_;
  std::uint32_t stages_;
  float* merged_;  ///< [kHeadDim / 2], kThreads apart
  std::uint32_t next_rows_[kLoads];
};

}  // namespace fastfd::kernels::cuda
