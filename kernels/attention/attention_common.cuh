#pragma once

/// What the two kinds of attention work share: arguments, sizes of shared memory, and where queries
/// and tokens are.

#include "kernels/attention/work.cuh"

namespace fastfd::kernels::cuda {

struct AttentionArguments {
  AttentionWork work;
  const layout::AbortState* abort;
  const layout::LaneSpan* spans;
  PagedKv kv;
  const bf16* q;
  bf16* out;
  float scale;
  int num_q_heads;
};

template <typename Kv, int kHeadDim>
struct AttentionShape {
  using Tile = QueryTile<Kv, kHeadDim>;
  static constexpr int kWarps = attention_warps(kHeadDim);
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kTileTokens = Tile::kTileTokens;
  static constexpr int kTileBytes = kTileTokens * Tile::kRowBytes;  ///< keys or values
  // Blocks: tiles of keys and values ahead, then the merged sums of all warps.
  static constexpr int kStages = 3;
  static constexpr int kMergedBytes = kThreads * (kHeadDim / 8) * 4 * sizeof(float);
  // Warps: a part of a tile of keys or values a buffer.
  static constexpr int kParts = 2;
  static constexpr int kPartTokens = kTileTokens / kParts;
  static constexpr int kPartBytes = kTileBytes / kParts;
  static constexpr int kWantedBuffers = 192 * 1024 / kWarps / kPartBytes;
  static constexpr int kBuffers = kWantedBuffers < 8 ? kWantedBuffers : 8;
  static constexpr int kBlockBytes = kStages * 2 * kTileBytes + kMergedBytes;
  static constexpr int kWarpsBytes = kWarps * kBuffers * kPartBytes;
  // In front of either: parked queries.
  static constexpr int kParkedBytes = kThreads * Tile::kParkedBytes;
  static constexpr int kSharedBytes =
      kParkedBytes + (kBlockBytes > kWarpsBytes ? kBlockBytes : kWarpsBytes);
  static_assert(kSharedBytes <= 227 * 1024 && kBuffers >= 3 && kPartTokens % 16 == 0);
  // A block leaves 4096 of an SM's registers to a kernel that waits there.
  static constexpr int kFairRegisters = (65536 - 4096) / kThreads / 8 * 8;
  static constexpr int kMaxRegisters = kFairRegisters < 240 ? kFairRegisters : 240;
};

/// Number of a token's row in the pools, or kNoRow from `end` on.
inline constexpr std::uint32_t kNoRow = 0xffffffffU;

struct TokenRows {
  const PageId* pages;
  std::uint32_t num_kv_heads;
  std::uint32_t kv_head;
  std::uint32_t page_size;
  int page_shift;
  int end;  ///< tokens of the sequence

  __device__ __forceinline__ TokenRows(const PagedKv& kv, const layout::LaneSpan& span, int head) {
    pages = kv.page_tables + span.slot * kv.pages_per_slot;
    num_kv_heads = static_cast<std::uint32_t>(kv.num_kv_heads);
    kv_head = static_cast<std::uint32_t>(head);
    page_size = static_cast<std::uint32_t>(kv.page_size);
    page_shift = __ffs(static_cast<int>(page_size)) - 1;
    end = static_cast<int>(span.start_position + span.num_rows);
  }

  __device__ __forceinline__ std::uint32_t row(int token) const {
    return token < end
               ? (__ldg(pages + (token >> page_shift)) * num_kv_heads + kv_head) * page_size +
                     (static_cast<std::uint32_t>(token) & (page_size - 1))
               : kNoRow;
  }
};

/// The two queries of this lane among 16 from `first_query` of the span on.
struct LaneQueries {
  int head[2];
  std::int64_t row[2];  ///< of the batch
  bool exists[2];
  int limit[2];  ///< tokens it sees; of one that does not exist, what the last one sees

  __device__ __forceinline__ LaneQueries(const layout::LaneSpan& span, int first_query, int group,
                                         int kv_head) {
    const int num_queries = static_cast<int>(span.num_rows) * group;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first_query + static_cast<int>(threadIdx.x) % kWarpSize / 4 + 8 * i;
      exists[i] = query < num_queries;
      const int nearest = min(query, num_queries - 1);
      const int span_row = nearest / group;
      head[i] = kv_head * group + nearest % group;
      row[i] = span.first_row + span_row;
      limit[i] = static_cast<int>(span.start_position) + span_row + 1;
    }
  }
};

template <typename Kv, int kHeadDim>
__device__ __forceinline__ void begin_tile(QueryTile<Kv, kHeadDim>& tile,
                                           const LaneQueries& queries,
                                           const AttentionArguments& args, std::byte* parked) {
  constexpr float kLog2E = 1.4426950408889634F;
  const void* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    rows[i] = queries.exists[i]
                  ? args.q + (queries.row[i] * args.num_q_heads + queries.head[i]) * kHeadDim
                  : nullptr;
  }
  const float key_scale = Kv::kElementBytes == 1 ? args.kv.key_scale : 1.0F;
  tile.begin(rows, queries.limit, args.scale * key_scale * kLog2E,
             reinterpret_cast<uint4*>(parked) + threadIdx.x);
}

/// Writes what the sums of a whole context are divided by `total`.
template <typename Kv, int kHeadDim>
__device__ __forceinline__ void store_output(const QueryTile<Kv, kHeadDim>& tile,
                                             const LaneQueries& queries, int i, float total,
                                             const AttentionArguments& args) {
  if (!queries.exists[i]) {
    return;
  }
  const float value_scale = Kv::kElementBytes == 1 ? args.kv.value_scale : 1.0F;
  const float factor = __fmul_rn(__frcp_rn(total), value_scale);
  bf16* out = args.out + (queries.row[i] * args.num_q_heads + queries.head[i]) * kHeadDim;
  tile.for_each_pair(i, [&](int dim, float low, float high) {
    *reinterpret_cast<std::uint32_t*>(out + dim) =
        Bf16Kv::pack(__fmul_rn(low, factor), __fmul_rn(high, factor));
  });
}

}  // namespace fastfd::kernels::cuda
