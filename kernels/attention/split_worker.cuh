#pragma once

#include "kernels/attention/attention_common.cuh"

namespace fastfd::kernels::cuda {

/// One warp: 16 queries against one split of their context.
template <typename Kv, int kHeadDim>
class SplitWorker {
  using Shape = AttentionShape<Kv, kHeadDim>;
  using Tile = QueryTile<Kv, kHeadDim>;

 public:
  __device__ __forceinline__ SplitWorker(const AttentionArguments& args, std::byte* shared)
      : args_(args),
        parked_(shared),
        buffers_(shared_address(shared) + Shape::kParkedBytes +
                 threadIdx.x / kWarpSize * Shape::kBuffers * Shape::kPartBytes),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ __forceinline__ void run(const SplitItem& item, int kv_head) {
    const layout::LaneSpan span = args_.spans[item.span];
    const int group = args_.num_q_heads / static_cast<int>(args_.kv.num_kv_heads);
    const LaneQueries queries(span, static_cast<int>(item.query_tile) * kQueriesPerWarp, group,
                              kv_head);
    const TokenRows rows(args_.kv, span, kv_head);
    const int begin = static_cast<int>(item.split) * kSplitTokens;
    // Rows of a span see ever more tokens; what the last query of the warp sees is enough.
    const int limit = __shfl_sync(kAllLanes, queries.limit[1], kWarpSize - 1);
    const int num_tokens = min(limit - begin, kSplitTokens);
    const int num_tiles = max((num_tokens + Shape::kTileTokens - 1) / Shape::kTileTokens, 0);
    start_loads(rows, begin, num_tiles);
    Tile tile;
    begin_tile(tile, queries, args_, parked_);
    for (int i = 0; i < num_tiles; ++i) {
      float scores[Shape::kTileTokens / 8][4];
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
        const std::uint32_t keys = next_loaded();
        tile.template score<Shape::kPartTokens>(scores + part * (Shape::kPartTokens / 8), keys);
        load_into_freed(rows);
      }
      tile.soften(scores, begin + i * Shape::kTileTokens);
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
        const std::uint32_t values = next_loaded();
        tile.template add_values<Shape::kPartTokens>(scores + part * (Shape::kPartTokens / 8),
                                                     values);
        load_into_freed(rows);
      }
    }
    const bool is_only_split = rows.end <= kSplitTokens;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const SoftmaxState state = tile.state(i);
      if (is_only_split) {
        store_output(tile, queries, i, state.total, args_);
      } else {
        store_partial(tile, queries, i, state, span, item);
      }
    }
  }

 private:
  /// Parts are loaded in the order they are used: the keys of a tile, then its values.
  __device__ __forceinline__ void start_loads(const TokenRows& rows, int begin, int num_tiles) {
    begin_ = begin;
    num_parts_ = 2 * Shape::kParts * num_tiles;
    issued_ = 0;
    write_buffer_ = 0;
    read_buffer_ = 0;
    find_next_row(rows);
#pragma unroll
    for (int i = 0; i < Shape::kBuffers; ++i) {
      load_next(rows);
    }
  }

  /// Lane i keeps the pool row of token i of the part that is loaded next.
  __device__ __forceinline__ void find_next_row(const TokenRows& rows) {
    const int token = begin_ + issued_ / (2 * Shape::kParts) * Shape::kTileTokens +
                      issued_ % Shape::kParts * Shape::kPartTokens + lane_ % Shape::kPartTokens;
    next_row_ = issued_ < num_parts_ ? rows.row(token) : kNoRow;
  }

  __device__ __forceinline__ void load_next(const TokenRows& rows) {
    constexpr int kRowsAtOnce = kWarpSize / Tile::kChunks;
    if (issued_ < num_parts_) {
      const auto* pool = static_cast<const std::byte*>(
          issued_ % (2 * Shape::kParts) < Shape::kParts ? args_.kv.keys : args_.kv.values);
      const int chunk = lane_ % Tile::kChunks;
      const std::uint32_t buffer = buffers_ + write_buffer_ * Shape::kPartBytes;
#pragma unroll
      for (int first = 0; first < Shape::kPartTokens; first += kRowsAtOnce) {
        const int token = first + lane_ / Tile::kChunks;
        const std::uint32_t row = __shfl_sync(kAllLanes, next_row_, token);
        const std::size_t offset =
            std::size_t{row == kNoRow ? 0 : row} * Tile::kRowBytes + chunk * 16;
        copy_async(buffer + chunk_offset<Tile::kChunks>(token, chunk), pool + offset,
                   row != kNoRow);
      }
    }
    commit_copies();
    ++issued_;
    write_buffer_ = write_buffer_ + 1 == Shape::kBuffers ? 0 : write_buffer_ + 1;
    find_next_row(rows);
  }

  /// Waits for the oldest part under way.
  __device__ __forceinline__ std::uint32_t next_loaded() {
    wait_copies<Shape::kBuffers - 1>();
    __syncwarp();
    const std::uint32_t buffer = buffers_ + read_buffer_ * Shape::kPartBytes;
    read_buffer_ = read_buffer_ + 1 == Shape::kBuffers ? 0 : read_buffer_ + 1;
    return buffer;
  }

  /// The part just used has been read by the whole warp.
  __device__ __forceinline__ void load_into_freed(const TokenRows& rows) {
    __syncwarp();
    load_next(rows);
  }

  __device__ __forceinline__ void store_partial(const Tile& tile, const LaneQueries& queries, int i,
                                                SoftmaxState state, const layout::LaneSpan& span,
                                                const SplitItem& item) {
    if (!queries.exists[i]) {
      return;
    }
    const std::int64_t row_split = item.first_row_split + std::int64_t{item.split} * span.num_rows +
                                   (queries.row[i] - span.first_row);
    const std::int64_t index = row_split * args_.num_q_heads + queries.head[i];
    if (lane_ % 4 == 0) {
      args_.work.states[index] = state;
    }
    float* sums = args_.work.sums + index * kHeadDim;
    tile.for_each_pair(i, [&](int dim, float low, float high) {
      *reinterpret_cast<float2*>(sums + dim) = make_float2(low, high);
    });
  }

  const AttentionArguments& args_;
  std::byte* parked_;
  std::uint32_t buffers_;
  int lane_;
  int begin_ = 0;
  int num_parts_ = 0;
  int issued_ = 0;
  int write_buffer_ = 0;
  int read_buffer_ = 0;
  std::uint32_t next_row_ = kNoRow;
};

}  // namespace fastfd::kernels::cuda
