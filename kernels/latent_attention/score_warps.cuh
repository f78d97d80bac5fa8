#pragma once

#include "kernels/latent_attention/block.cuh"
#include "kernels/latent_attention/item_source.cuh"

namespace fastfd::kernels::cuda::latent {

/// The warpgroup that multiplies queries and tokens, and turns scores into weights: softmax on line
/// in float, in the order and with the operations of QueryTile. Thread t has two queries, l / 4 and
/// 8 further down of its warp's 16, each shared by four lanes.
class ScoreWarps {
 public:
  __device__ ScoreWarps(const Arguments& args, Shared& shared)
      : args_(args),
        shared_(shared),
        source_(args, shared),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroupSize),
        lane_(thread_ % kWarpSize),
        first_row_(thread_ / kWarpSize * 16 + lane_ / 4) {}

  __device__ void run() {
    hand_out_item();
    if (const Item* first = wait_for_item(shared_, 0)) {
      load_queries(*first);
    }
    for (std::uint32_t count = 0;; ++count) {
      const Item* item = wait_for_item(shared_, count);
      if (item == nullptr) {
        return;
      }
      const int num_tiles = item->num_tiles();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        limits_[i] = item->limit(item->first_query + first_row_ + 8 * i, args_.num_heads);
      }
      wait_copies<0>();
      async_proxy_fence();
      sync_threads(kScoreBarrier, kWarpgroupSize);  // all threads' copies
      for (int tile = 0; tile < num_tiles; ++tile) {
        const int begin = item->begin + tile * kTileTokens;
        const bool is_last = tile + 1 == num_tiles;
        begin_score();
        if (tile == 0) {
          hand_out_item();
        }
        end_score();
        if (is_last) {
          sync_threads(kScoreBarrier, kWarpgroupSize);  // nobody reads the queries any more
          if (const Item* next = wait_for_item(shared_, count + 1)) {
            load_queries(*next);
          }
        }
        const bool is_first_of_split = begin % kLatentSplitTokens == 0;
        const bool is_last_of_split = is_last || (begin + kTileTokens) % kLatentSplitTokens == 0;
        if (is_first_of_split) {
          begin_split();
        }
        soften(begin);
        publish((is_first_of_split ? kFirstOfSplit : 0) | (is_last_of_split ? kLastOfSplit : 0) |
                (is_last ? kLastOfItem : 0) |
                (begin < item->begin + kLatentSplitTokens ? kInFirstSplit : 0));
      }
      barrier_arrive(&shared_.items_empty[slot_of<kItemSlots>(count)]);
    }
  }

 private:
  /// What a thread has of 64 queries x 32 tokens.
  static constexpr int kScores = kTileTokens / 2;
  static constexpr int kScoreBarrier = 1;

  __device__ void hand_out_item() {
    if (thread_ == 0) {
      source_.hand_out_next();
    }
    __syncwarp();
  }

  __device__ void load_queries(const Item& item) {
    constexpr int kChunks = kSwizzleRowBytes / 16;  // of a slice's row
    constexpr int kRowsAtOnce = kWarpgroupSize / kChunks;
    const std::uint32_t to = shared_address(shared_.queries);
    const int chunk = thread_ % kChunks;
    const std::int64_t first =
        std::int64_t{item.span.first_row} * args_.num_heads + item.first_query;
#pragma unroll 1
    for (int row = thread_ / kChunks; row < kTileQueries; row += kRowsAtOnce) {
      const bool exists = item.first_query + row < item.num_queries;
      const bf16* from = args_.queries + (exists ? first + row : 0) * kLatentRowDim + chunk * 8;
      const std::uint32_t at = to + swizzled_offset(row, chunk);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        copy_async(at + slice * kQuerySliceBytes, from + slice * 64, exists);
      }
    }
    commit_copies();
  }

  /// scores = queries tokens^T for the next tile, in the background.
  __device__ void begin_score() {
    const int stage = slot_of<kStages>(num_tiles_);
    barrier_wait(&shared_.tokens_full[stage], parity_of<kStages>(num_tiles_));
    async_proxy_fence();
    const std::uint64_t queries = tile_descriptor(shared_.queries);
    const std::uint64_t tokens = tile_descriptor(shared_.tokens[stage]);
    pin_registers(scores_);
    mma_fence();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int step = 0; step < kMmasPerRow; ++step) {
        Mma<MmaType::kBFloat16, kTileTokens>::issue(
            scores_, k_step(queries + (slice * kQuerySliceBytes >> 4), step),
            k_step(tokens + (slice * kTokenSliceBytes >> 4), step), slice + step > 0);
      }
    }
    mma_commit();
    pin_registers(scores_);
  }

  __device__ void end_score() {
    mma_wait<0>();
    pin_registers(scores_);
  }

  __device__ void begin_split() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest_[row] = kMinusInfinity;
      totals_[row] = 0.0F;
    }
  }

  __device__ void soften(int begin) {
    if (begin + kTileTokens > min(limits_[0], limits_[1])) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int token = begin + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
        scores_[i] = token < limits_[i % 4 / 2] ? scores_[i] : kMinusInfinity;
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = largest_[row];
#pragma unroll
      for (int i = 0; i < kTileTokens / 8; ++i) {
        largest = fmaxf(largest, fmaxf(scores_[4 * i + 2 * row], scores_[4 * i + 2 * row + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      // A row that has seen nothing yet has no largest score to subtract.
      const float base = largest == kMinusInfinity ? 0.0F : __fmul_rn(-largest, args_.scale);
      // Exactly 1 if nothing larger came: a tile that a row sees nothing of must change no bit.
      factors_[row] =
          largest == largest_[row] ? 1.0F : fast_exp2(__fmaf_rn(largest_[row], args_.scale, base));
      largest_[row] = largest;
      float total = 0.0F;
#pragma unroll
      for (int i = 0; i < kTileTokens / 8; ++i) {
#pragma unroll
        for (int j = 4 * i + 2 * row; j < 4 * i + 2 * row + 2; ++j) {
          scores_[j] = fast_exp2(__fmaf_rn(scores_[j], args_.scale, base));
          total += scores_[j];
        }
      }
      totals_[row] = __fmaf_rn(totals_[row], factors_[row], total);
    }
  }

  /// Hands a tile's weights, and what follows from them, to the warps that sum.
  __device__ void publish(std::uint32_t flags) {
    const int slot = slot_of<2>(num_tiles_);
    barrier_wait(&shared_.weights_empty[slot], parity_of<2>(num_tiles_) ^ 1);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = first_row_ + 8 * row;
      if ((flags & kLastOfSplit) != 0) {
        float total = totals_[row];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        if (lane_ % 4 == 0) {
          shared_.states[slot][query] = {largest_[row] == kMinusInfinity
                                             ? kMinusInfinity
                                             : __fmul_rn(largest_[row], args_.scale),
                                         total};
        }
      }
      if (lane_ % 4 == 0) {
        shared_.factors[slot][query] = factors_[row];
      }
#pragma unroll
      for (int i = 0; i < kTileTokens / 8; ++i) {
        const int chunk = slot * (kTileTokens / 8) + i;
        *reinterpret_cast<std::uint32_t*>(shared_.weights + swizzled_offset(query, chunk) +
                                          lane_ % 4 * 4) =
            Bf16Kv::pack(scores_[4 * i + 2 * row], scores_[4 * i + 2 * row + 1]);
      }
    }
    if (thread_ == 0) {
      shared_.flags[slot] = flags;
    }
    async_proxy_fence();
    barrier_arrive(&shared_.weights_full[slot]);
    ++num_tiles_;
  }

  const Arguments& args_;
  Shared& shared_;
  ItemSource source_;  // thread 0
  int thread_;
  int lane_;
  int first_row_;
  std::uint32_t num_tiles_ = 0;  // so far
  int limits_[2];
  float scores_[kScores];
  float largest_[2];
  float totals_[2];
  float factors_[2];
};

}  // namespace fastfd::kernels::cuda::latent
