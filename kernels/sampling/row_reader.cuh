#pragma once

/// One block reads the logits of one row, or a list of some of them in shared memory.

#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/sampling/token_rank.cuh"

namespace fastfd::kernels::cuda {

inline constexpr int kSamplingThreads = 1024;
inline constexpr int kSamplingWarps = kSamplingThreads / kWarpSize;
inline constexpr std::uint32_t kListCapacity = 4096;

/// Candidates that a pass over the row has picked out.
struct TokenList {
  std::uint32_t size;  ///< may exceed kListCapacity: the list then is useless
  float logits[kListCapacity];
  std::uint32_t tokens[kListCapacity];
};

class RowReader {
 public:
  /// `logits` is an address of the row; the buffer it lies in is 16-byte aligned.
  __device__ RowReader(const float* logits, std::uint32_t vocab_size)
      : logits_(logits), vocab_size_(vocab_size) {}

  __device__ std::uint32_t vocab_size() const { return vocab_size_; }
  __device__ float operator[](std::uint32_t token) const { return logits_[token]; }

  /// Calls visit(token, logit) for tokens of [begin, end), which kThreads threads share; this is
  /// thread `thread` of them, and sees its tokens in ascending order.
  template <int kThreads, typename Visit>
  __device__ void for_range(std::uint32_t thread, std::uint32_t begin, std::uint32_t end,
                            Visit visit) const {
    // Loads are 16 bytes wide from wherever that is aligned, and several are under way before the
    // first is looked at: a block must read its row at the speed of an SM.
    constexpr std::uint32_t kLoads = 4;
    const auto offset = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(logits_) / 4);
    // Tokens of a vector: 4 * index + shift .. + 3; those outside [begin, end) don't count.
    const std::uint32_t first_vector = (begin + offset % 4) / 4;
    const std::uint32_t last_vector = (end + offset % 4 + 3) / 4;
    for (std::uint32_t vector = first_vector + thread; vector < last_vector;
         vector += kThreads * kLoads) {
      float4 loaded[kLoads];
#pragma unroll
      for (std::uint32_t i = 0; i < kLoads; ++i) {
        loaded[i] = load(4 * (vector + i * kThreads) - offset % 4, begin, end);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kLoads; ++i) {
        const std::uint32_t token = 4 * (vector + i * kThreads) - offset % 4;
        const float logits[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) {
          if (is_in(token + j, begin, end)) {
            visit(token + j, logits[j]);
          }
        }
      }
    }
  }

  /// The same for the whole row and block.
  template <typename Visit>
  __device__ void for_each(Visit visit) const {
    for_range<kSamplingThreads>(threadIdx.x, 0, vocab_size_, visit);
  }

 private:
  /// A vector that begins in front of the row has a token that wraps around.
  static __device__ bool is_in(std::uint32_t token, std::uint32_t begin, std::uint32_t end) {
    return token >= begin && token < end;
  }

  __device__ float4 load(std::uint32_t token, std::uint32_t begin, std::uint32_t end) const {
    if (is_in(token, begin, end) && is_in(token + 3, begin, end)) {
      return *reinterpret_cast<const float4*>(logits_ + token);
    }
    const auto one = [&](std::uint32_t t) { return is_in(t, begin, end) ? logits_[t] : 0.0F; };
    return make_float4(one(token), one(token + 1), one(token + 2), one(token + 3));
  }

  const float* logits_;
  std::uint32_t vocab_size_;
};

}  // namespace fastfd::kernels::cuda
