#pragma once

/// What one warp does: 16 queries against tiles of tokens, softmax on line in float (Milakov and
/// Gimelshein, "Online normalizer calculation for softmax", 2018; tiled as in Dao et al.,
/// "FlashAttention", 2022).
///
/// The bits of a row depend on its own sequence only. Tokens are worked on in tiles of kTileTokens
/// and splits of kSplitTokens, both at fixed positions of the sequence: a split is one chain of
/// tiles, and splits are merged in ascending order by merge_split(), whether one warp runs through
/// them all or every split is somebody else's. A tile that a row sees nothing of changes nothing.

#include <cstdint>

#include "kernels/attention/kv_tile.cuh"

namespace fastfd::kernels::cuda {

/// With half as many, 64 decode rows at a context of 2K took 12 % longer on an H200, for the
/// partial results; a few rows alone would be faster.
inline constexpr int kSplitTokens = 512;
inline constexpr int kQueriesPerWarp = 16;
/// Warps of an attention block; large heads leave room for fewer.
constexpr int attention_warps(std::int64_t head_dim) { return head_dim <= 128 ? 8 : 4; }
inline constexpr float kMinusInfinity = -__builtin_inff();

/// Result of one split for one row, and the running result of several: values are sums weighted by
/// 2^(score - largest), divided by `total` in the end.
struct SoftmaxState {
  float largest;  ///< in units of log2
  float total;
};

/// Factors of what has been merged and of the split to merge into it.
struct MergeFactors {
  float merged;
  float split;
};

/// The first split is taken as it is; every later one goes through here and merge_value().
__device__ __forceinline__ MergeFactors merge_split(SoftmaxState& merged, SoftmaxState split) {
  const float largest = fmaxf(merged.largest, split.largest);
  const MergeFactors factors{fast_exp2(merged.largest - largest),
                             fast_exp2(split.largest - largest)};
  merged.total = __fmaf_rn(split.total, factors.split, __fmul_rn(merged.total, factors.merged));
  merged.largest = largest;
  return factors;
}

__device__ __forceinline__ float merge_value(float merged, float split, MergeFactors factors) {
  return __fmaf_rn(split, factors.split, __fmul_rn(merged, factors.merged));
}

/// A lane's share of 16 queries: rows g and g + 8, g = lane / 4, of every matrix of the tile.
template <typename Kv, int kHeadDim>
class QueryTile {
 public:
  static constexpr int kTileTokens = kHeadDim <= 128 ? 64 : 32;
  static constexpr int kRowBytes = kHeadDim * Kv::kElementBytes;
  static constexpr int kChunks = kRowBytes / 16;  ///< of 16 bytes, a token's key or value
  static constexpr int kThreads = attention_warps(kHeadDim) * kWarpSize;  ///< of the block
  /// Large heads don't fit the registers beside their sums: each thread then parks its queries in
  /// shared memory.
  static constexpr int kParkedBytes = kHeadDim > 128 ? kHeadDim : 0;  ///< a thread

  /// Rows of head_dim bf16 each, or nullptr for rows of zeros; they see the first `limit` tokens of
  /// the sequence. `scale` is that of the scores, times log2(e). `parked` is this thread's first 16
  /// of kParkedBytes, which lie 16 bytes a thread of the block apart.
  __device__ __forceinline__ void begin(const void* const (&rows)[2], const int (&limits)[2],
                                        float scale, uint4* parked) {
    lane_ = static_cast<int>(threadIdx.x) % kWarpSize;
    limits_[0] = limits[0];
    limits_[1] = limits[1];
    scale_ = scale;
    parked_ = parked;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      std::uint32_t a[4];
      Kv::load_queries(a, rows[0], rows[1], step * 16, lane_ % 4);
      if constexpr (kParkedBytes > 0) {
        parked_[step * kThreads] = make_uint4(a[0], a[1], a[2], a[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          queries_[step][i] = a[i];
        }
      }
    }
    begin_split();
  }

  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums_[i][j] = 0.0F;
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest_[row] = kMinusInfinity;
      totals_[row] = 0.0F;
    }
  }

  /// scores = queries keys^T for kTokens tokens of a tile in shared memory.
  template <int kTokens>
  __device__ __forceinline__ void score(float (*scores)[4], std::uint32_t keys) {
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = 0.0F;
      }
    }
    // Tokens inside: neighbouring products don't wait for each other.
#pragma unroll
    for (int dim = 0; dim < kHeadDim; dim += 32) {
      std::uint32_t a[2][4];
      get_queries(a[0], dim / 16);
      get_queries(a[1], dim / 16 + 1);
#pragma unroll
      for (int token = 0; token < kTokens; token += 16) {
        std::uint32_t b[2][2][2];
        Kv::template load_keys<kChunks>(b, keys, token, dim, lane_);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          Kv::mma(scores[token / 8], a[step], b[step][0]);
          Kv::mma(scores[token / 8 + 1], a[step], b[step][1]);
        }
      }
    }
  }

  /// Turns the scores of a whole tile, whose first token is `tile_start`, into weights.
  __device__ __forceinline__ void soften(float (&scores)[kTileTokens / 8][4], int tile_start) {
    if (tile_start + kTileTokens > min(limits_[0], limits_[1])) {
      hide_later_tokens(scores, tile_start);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = largest_[row];
#pragma unroll
      for (int i = 0; i < kTileTokens / 8; ++i) {
        largest = fmaxf(largest, fmaxf(scores[i][2 * row], scores[i][2 * row + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      // A row that has seen nothing yet has no largest score to subtract.
      const float base = largest == kMinusInfinity ? 0.0F : __fmul_rn(-largest, scale_);
      // Exactly 1 if nothing larger came: a tile that a row sees nothing of must change no bit.
      const float factor =
          largest == largest_[row] ? 1.0F : fast_exp2(__fmaf_rn(largest_[row], scale_, base));
      largest_[row] = largest;
      float total = 0.0F;
#pragma unroll
      for (int i = 0; i < kTileTokens / 8; ++i) {
#pragma unroll
        for (int j = 2 * row; j < 2 * row + 2; ++j) {
          scores[i][j] = fast_exp2(__fmaf_rn(scores[i][j], scale_, base));
          total += scores[i][j];
        }
      }
      totals_[row] = __fmaf_rn(totals_[row], factor, total);
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        sums_[i][2 * row] *= factor;
        sums_[i][2 * row + 1] *= factor;
      }
    }
  }

  /// sums += weights values for kTokens tokens of a tile in shared memory.
  template <int kTokens>
  __device__ __forceinline__ void add_values(const float (*weights)[4], std::uint32_t values) {
#pragma unroll
    for (int token = 0; token < kTokens; token += 16) {
      const float(&first)[4] = weights[token / 8];
      const float(&second)[4] = weights[token / 8 + 1];
      const std::uint32_t a[4] = {Kv::pack(first[0], first[1]), Kv::pack(first[2], first[3]),
                                  Kv::pack(second[0], second[1]), Kv::pack(second[2], second[3])};
#pragma unroll
      for (int dim = 0; dim < kHeadDim; dim += 32) {
        std::uint32_t b[4][2];
        Kv::template load_values<kChunks>(b, values, token, dim, lane_);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Kv::mma(sums_[dim / 8 + i], a, b[i]);
        }
      }
    }
  }

  /// State of the split so far; equal in the four lanes of a row.
  __device__ __forceinline__ SoftmaxState state(int row) const {
    float total = totals_[row];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    return {largest_[row] == kMinusInfinity ? kMinusInfinity : __fmul_rn(largest_[row], scale_),
            total};
  }

  /// The sums of this lane: [kHeadDim / 8][4], elements 0, 1 of row g and 2, 3 of row g + 8.
  __device__ __forceinline__ float (&sums())[kHeadDim / 8][4] { return sums_; }

  /// Calls store(dim, low, high) for every pair of neighbouring dims of a row this lane has.
  template <typename Store>
  __device__ __forceinline__ void for_each_pair(int row, Store store) const {
#pragma unroll
    for (int block = 0; block < kHeadDim / 16; ++block) {
      const float v[4] = {sums_[2 * block][2 * row], sums_[2 * block][2 * row + 1],
                          sums_[2 * block + 1][2 * row], sums_[2 * block + 1][2 * row + 1]};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        store(block * 16 + Kv::pair_dim(pair, lane_ % 4), v[Kv::pair_index(pair, 0)],
              v[Kv::pair_index(pair, 1)]);
      }
    }
  }

 private:
  __device__ __forceinline__ void get_queries(std::uint32_t (&a)[4], int step) const {
    if constexpr (kParkedBytes > 0) {
      const uint4 q = parked_[step * kThreads];
      a[0] = q.x;
      a[1] = q.y;
      a[2] = q.z;
      a[3] = q.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = queries_[step][i];
      }
    }
  }

  __device__ __forceinline__ void hide_later_tokens(float (&scores)[kTileTokens / 8][4],
                                                    int tile_start) {
#pragma unroll
    for (int i = 0; i < kTileTokens / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = tile_start + i * 8 + lane_ % 4 * 2 + j % 2;
        scores[i][j] = token < limits_[j / 2] ? scores[i][j] : kMinusInfinity;
      }
    }
  }

  int lane_;
  int limits_[2];
  float scale_;
  uint4* parked_;
  std::uint32_t queries_[kParkedBytes > 0 ? 1 : kHeadDim / 16][4];
  float sums_[kHeadDim / 8][4];
  float largest_[2];
  float totals_[2];
};

}  // namespace fastfd::kernels::cuda
