#pragma once

/// One block chooses one token. Sets of likeliest tokens are found by bisection over a threshold,
/// with the count or weight above it summed in integers: by rounds over a short list of candidates
/// in shared memory where that provably holds everything needed, else over the whole row.

#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/sampling/op_cuda.h"
#include "kernels/sampling/token_rank.cuh"

namespace fastfd::kernels::cuda {

inline constexpr int kSamplingThreads = 1024;
inline constexpr std::uint32_t kListCapacity = 4096;

struct SamplingShared {
  Mass masses[kSamplingThreads / kWarpSize];
  std::uint64_t words[kSamplingThreads / kWarpSize];
  double doubles[kSamplingThreads / kWarpSize];
  std::uint32_t list_size;
  std::uint32_t num_top;
  TokenId chosen;
  std::uint64_t top[kMaxTopLogprobs];
  float list_logits[kListCapacity];
  std::uint32_t list_tokens[kListCapacity];
};

/// The largest logit of a row and of each thread's share of it.
struct RowMaximum {
  float logit;
  TokenId token;             ///< lowest id that has it
  bool is_valid;             ///< no NaN, no +infinity, and not all of it -infinity
  std::uint32_t thread_key;  ///< differs from thread to thread
};

class RowSampler {
 public:
  __device__ RowSampler(const float* logits, std::uint32_t vocab_size, SamplingShared& shared)
      : logits_(logits), vocab_size_(vocab_size), shared_(shared) {}

  /// Must come first; also after set_logits().
  __device__ RowMaximum find_maximum();
  __device__ void set_logits(const float* logits) { logits_ = logits; }

  /// log(sum(exp(logits))).
  __device__ double log_total(float largest);

  /// The `count` likeliest tokens, likeliest first, into shared.top as ranks; returns how many.
  __device__ std::uint32_t find_top(std::uint32_t count, const RowMaximum& maximum);

  __device__ TokenId draw(const SlotSampling& sampling, std::uint32_t position,
                          const RowMaximum& maximum);

 private:
  template <typename Visit>
  __device__ void for_each(bool in_list, Visit visit) const;
  __device__ Mass sum(Mass mass);
  __device__ std::uint64_t weight_of(float logit) const;
  /// Mass of the kept tokens whose key is at least `key`.
  __device__ Mass mass_from(bool in_list, std::uint32_t key);
  __device__ std::uint32_t kth_thread_key(std::uint32_t k, std::uint32_t thread_key);
  /// Lists the kept tokens with a key in [low, high]; returns the weight of the whole row if asked.
  __device__ std::uint64_t collect(std::uint32_t low, std::uint32_t high, bool wants_total);
  /// Drops what is not needed to reach `target`, counted or weighed, from the likeliest down.
  __device__ void keep_likeliest(bool by_count, std::uint64_t target);
  __device__ TokenId pick(std::uint64_t point);
  __device__ TokenId pick_from_row(std::uint64_t point);
  __device__ void set_temperature(float temperature, float largest);

  const float* logits_;
  std::uint32_t vocab_size_;
  SamplingShared& shared_;
  float largest_ = 0.0F;
  float scale_ = 0.0F;  ///< log2(e) / temperature, as two floats
  float scale_low_ = 0.0F;
  std::uint64_t cut_ = 0;  ///< tokens of this rank and above are kept
  bool in_list_ = false;   ///< the list holds every kept token
};

template <typename Visit>
__device__ void RowSampler::for_each(bool in_list, Visit visit) const {
  if (in_list) {
    for (std::uint32_t i = threadIdx.x; i < shared_.list_size; i += kSamplingThreads) {
      visit(shared_.list_tokens[i], shared_.list_logits[i]);
    }
    return;
  }
#pragma unroll 8
  for (std::uint32_t token = threadIdx.x; token < vocab_size_; token += kSamplingThreads) {
    visit(token, logits_[token]);
  }
}

__device__ inline Mass RowSampler::sum(Mass mass) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    mass = mass + Mass{__shfl_xor_sync(kAllLanes, mass.weight, offset),
                       __shfl_xor_sync(kAllLanes, mass.count, offset)};
  }
  if (threadIdx.x % kWarpSize == 0) {
    shared_.masses[threadIdx.x / kWarpSize] = mass;
  }
  __syncthreads();
  mass = shared_.masses[threadIdx.x % kWarpSize];
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    mass = mass + Mass{__shfl_xor_sync(kAllLanes, mass.weight, offset),
                       __shfl_xor_sync(kAllLanes, mass.count, offset)};
  }
  __syncthreads();
  return mass;
}

__device__ inline RowMaximum RowSampler::find_maximum() {
  constexpr float kInfinity = __builtin_inff();
  float largest = -kInfinity;
  std::uint32_t token_of_largest = 0;
  bool is_bad = false;
  for_each(false, [&](std::uint32_t token, float logit) {
    is_bad |= !(logit < kInfinity);
    if (logit > largest) {
      largest = logit;
      token_of_largest = token;
    }
  });
  const std::uint64_t rank = largest == -kInfinity ? 0 : rank_of(largest, token_of_largest);
  const std::uint64_t best =
      reduce_block<kSamplingThreads>(rank, std::uint64_t{0}, shared_.words, Max{});
  const bool any_bad = __syncthreads_or(static_cast<int>(is_bad)) != 0;
  RowMaximum maximum{};
  maximum.is_valid = best != 0 && !any_bad;
  maximum.token = static_cast<TokenId>(~static_cast<std::uint32_t>(best));
  maximum.logit = maximum.is_valid ? logits_[maximum.token] : 0.0F;
  maximum.thread_key = static_cast<std::uint32_t>(rank >> 32);
  return maximum;
}

__device__ inline double RowSampler::log_total(float largest) {
  float total = 0.0F;
  for_each(false, [&](std::uint32_t, float logit) { total += expf(logit - largest); });
  const double sum =
      reduce_block<kSamplingThreads>(static_cast<double>(total), 0.0, shared_.doubles, Sum{});
  return static_cast<double>(largest) + log(sum);
}

__device__ inline void RowSampler::set_temperature(float temperature, float largest) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = fmin(kLog2E / static_cast<double>(temperature), 3.0e38);
  scale_ = static_cast<float>(scale);
  scale_low_ = static_cast<float>(scale - static_cast<double>(scale_));
  largest_ = largest;
}

__device__ inline std::uint64_t RowSampler::weight_of(float logit) const {
  constexpr float kUnits = 1099511627776.0F;  // 2^40
  const float difference = __fsub_rn(logit, largest_);
  const float exponent = __fmul_rn(difference, scale_);
  if (!(exponent > -41.0F)) {
    return 0;
  }
  // The product's rounding error would be a relative error of the weight.
  const float error = __fmaf_rn(difference, scale_low_, __fmaf_rn(difference, scale_, -exponent));
  const float weight = exp2f(exponent);
  return static_cast<std::uint64_t>(
      __fmaf_rn(weight * kUnits, error * 0.6931471805599453F, weight * kUnits));
}

__device__ inline Mass RowSampler::mass_from(bool in_list, std::uint32_t key) {
  Mass mass;
  for_each(in_list, [&](std::uint32_t token, float logit) {
    const std::uint64_t rank = rank_of(logit, token);
    if (rank >= cut_ && static_cast<std::uint32_t>(rank >> 32) >= key) {
      mass.weight += weight_of(logit);
      ++mass.count;
    }
  });
  return sum(mass);
}

/// The k-th largest of the threads' largest keys: at least k tokens of the row have such a key.
__device__ inline std::uint32_t RowSampler::kth_thread_key(std::uint32_t k,
                                                           std::uint32_t thread_key) {
  std::uint32_t key = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    if (__syncthreads_count(static_cast<int>(thread_key >= (key | bit))) >= static_cast<int>(k)) {
      key |= bit;
    }
  }
  return key;
}

__device__ inline std::uint64_t RowSampler::collect(std::uint32_t low, std::uint32_t high,
                                                    bool wants_total) {
  if (threadIdx.x == 0) {
    shared_.list_size = 0;
  }
  __syncthreads();
  Mass all;
  for_each(false, [&](std::uint32_t token, float logit) {
    const std::uint64_t rank = rank_of(logit, token);
    const auto key = static_cast<std::uint32_t>(rank >> 32);
    if (wants_total) {
      all.weight += weight_of(logit);
    }
    if (key >= low && key <= high && rank >= cut_) {
      const std::uint32_t at = atomicAdd(&shared_.list_size, 1U);
      if (at < kListCapacity) {
        shared_.list_logits[at] = logit;
        shared_.list_tokens[at] = token;
      }
    }
  });
  __syncthreads();
  return wants_total ? sum(all).weight : 0;
}

__device__ inline void RowSampler::keep_likeliest(bool by_count, std::uint64_t target) {
  const auto is_enough = [&](const Mass& mass) {
    return (by_count ? mass.count : mass.weight) >= target;
  };
  // Invariant: what lies from `low` on is enough, what lies from `high` on is not.
  std::uint32_t low = static_cast<std::uint32_t>(cut_ >> 32);
  std::uint32_t high = order_key(largest_) + 1;
  Mass from_low = mass_from(in_list_, low);
  Mass from_high;
  if (!is_enough(from_low)) {
    return;
  }
  bool in_list = in_list_;
  Mass above;  // of an incomplete list, which holds the keys in [low, high)
  while (high - low > 1) {
    if (!in_list && from_low.count - from_high.count <= kListCapacity) {
      collect(low, high - 1, false);
      in_list = true;
      above = from_high;
    }
    const std::uint32_t middle = low + (high - low) / 2;
    const Mass mass = above + mass_from(in_list, middle);
    if (is_enough(mass)) {
      low = middle;
      from_low = mass;
    } else {
      high = middle;
      from_high = mass;
    }
  }
  // Among equal logits the lower ids come first.
  std::uint64_t cut = std::uint64_t{low} << 32;
  if (from_low.count - from_high.count > 1) {
    std::uint32_t first = 0;
    std::uint32_t last = vocab_size_ - 1;
    while (first < last) {
      const std::uint32_t middle = first + (last - first) / 2;
      Mass mass;
      for_each(in_list, [&](std::uint32_t token, float logit) {
        if (order_key(logit) == low && token <= middle && rank_of(logit, token) >= cut_) {
          mass.weight += weight_of(logit);
          ++mass.count;
        }
      });
      if (is_enough(from_high + sum(mass))) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    cut |= ~last;
  }
  cut_ = cut > cut_ ? cut : cut_;
}

__device__ inline std::uint32_t RowSampler::find_top(std::uint32_t count,
                                                     const RowMaximum& maximum) {
  const std::uint32_t wanted = min(min(count, kMaxTopLogprobs), vocab_size_);
  set_temperature(1.0F, maximum.logit);
  cut_ = 0;
  collect(kth_thread_key(wanted, maximum.thread_key), 0xffffffffU, false);
  in_list_ = shared_.list_size <= kListCapacity;
  keep_likeliest(true, wanted);
  if (threadIdx.x == 0) {
    shared_.num_top = 0;
  }
  __syncthreads();
  for_each(in_list_, [&](std::uint32_t token, float logit) {
    const std::uint64_t rank = rank_of(logit, token);
    if (rank >= cut_) {
      shared_.words[atomicAdd(&shared_.num_top, 1U)] = rank;
    }
  });
  __syncthreads();
  if (threadIdx.x < wanted) {
    const std::uint64_t rank = shared_.words[threadIdx.x];
    std::uint32_t likelier = 0;
    for (std::uint32_t i = 0; i < wanted; ++i) {
      likelier += shared_.words[i] > rank ? 1 : 0;
    }
    shared_.top[likelier] = rank;
  }
  __syncthreads();
  return wanted;
}

/// The kept tokens share [0, their weight) in ascending id: the one that `point` falls on.
__device__ inline TokenId RowSampler::pick(std::uint64_t point) {
  if (!in_list_) {
    return pick_from_row(point);
  }
  std::uint32_t first = 0;
  std::uint32_t last = vocab_size_ - 1;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    Mass mass;
    for_each(true, [&](std::uint32_t token, float logit) {
      if (token <= middle && rank_of(logit, token) >= cut_) {
        mass.weight += weight_of(logit);
      }
    });
    if (sum(mass).weight > point) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return static_cast<TokenId>(first);
}

__device__ inline TokenId RowSampler::pick_from_row(std::uint64_t point) {
  constexpr std::uint32_t kWarps = kSamplingThreads / kWarpSize;
  const std::uint32_t lane = threadIdx.x % kWarpSize;
  const auto kept_weight = [&](std::uint32_t token) -> std::uint64_t {
    const float logit = logits_[token];
    return rank_of(logit, token) >= cut_ ? weight_of(logit) : 0;
  };
  // Warps have consecutive stretches of ids; then the whole block walks the one with the point.
  const std::uint32_t stretch = (vocab_size_ + kWarps - 1) / kWarps;
  const std::uint32_t warp_begin = threadIdx.x / kWarpSize * stretch;
  std::uint64_t weight = 0;
#pragma unroll 8
  for (std::uint32_t i = lane; i < stretch; i += kWarpSize) {
    weight += warp_begin + i < vocab_size_ ? kept_weight(warp_begin + i) : 0;
  }
  weight = reduce_warp(weight, Sum{});
  if (lane == 0) {
    shared_.words[threadIdx.x / kWarpSize] = weight;
  }
  __syncthreads();
  std::uint32_t warp = 0;
  while (warp + 1 < kWarps && shared_.words[warp] <= point) {
    point -= shared_.words[warp++];
  }
  __syncthreads();
  const std::uint32_t end = min((warp + 1) * stretch, vocab_size_);
  const std::uint32_t share = (stretch + kSamplingThreads - 1) / kSamplingThreads;
  const std::uint32_t begin = min(warp * stretch + threadIdx.x * share, end);
  weight = 0;
  for (std::uint32_t token = begin; token < min(begin + share, end); ++token) {
    weight += kept_weight(token);
  }
  // Weights of the threads before this one.
  std::uint64_t before = weight;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const std::uint64_t other = __shfl_up_sync(kAllLanes, before, offset);
    before += lane >= static_cast<std::uint32_t>(offset) ? other : 0;
  }
  if (lane == kWarpSize - 1) {
    shared_.words[threadIdx.x / kWarpSize] = before;
  }
  __syncthreads();
  before -= weight;
  for (std::uint32_t i = 0; i < threadIdx.x / kWarpSize; ++i) {
    before += shared_.words[i];
  }
  if (before <= point && point < before + weight) {
    std::uint32_t token = begin;
    for (before += kept_weight(token); before <= point; before += kept_weight(token)) {
      ++token;
    }
    shared_.chosen = static_cast<TokenId>(token);
  }
  __syncthreads();
  return shared_.chosen;
}

__device__ inline TokenId RowSampler::draw(const SlotSampling& sampling, std::uint32_t position,
                                           const RowMaximum& maximum) {
  set_temperature(sampling.temperature, maximum.logit);
  cut_ = 0;
  in_list_ = false;
  const bool limits_count =
      sampling.top_k > 0 && static_cast<std::uint32_t>(sampling.top_k) < vocab_size_;
  const bool has_min_p = sampling.min_p > 0.0F;
  const bool has_top_p = sampling.top_p < 1.0F;
  const double top_p = static_cast<double>(sampling.top_p);
  std::uint32_t bound = 0;
  if (has_min_p) {
    // The smallest logit whose weight is min_p; the likeliest token always stays.
    const float smallest = __double2float_ru(static_cast<double>(maximum.logit) +
                                             static_cast<double>(sampling.temperature) *
                                                 log(static_cast<double>(sampling.min_p)));
    bound = order_key(fminf(smallest, maximum.logit));
    cut_ = std::uint64_t{bound} << 32;
  }
  if (limits_count && sampling.top_k <= kSamplingThreads) {
    bound =
        max(bound, kth_thread_key(static_cast<std::uint32_t>(sampling.top_k), maximum.thread_key));
  }
  std::uint64_t total = 0;
  if (bound > 0) {
    collect(bound, 0xffffffffU, false);
    in_list_ = shared_.list_size <= kListCapacity;
  } else if (has_top_p && !limits_count) {
    // The nucleus is nearly always among the tokens within a factor of 2^12 of the likeliest.
    total = collect(order_key(maximum.logit - 12.0F / scale_), 0xffffffffU, true);
    in_list_ =
        shared_.list_size <= kListCapacity &&
        static_cast<double>(mass_from(true, 0).weight) > top_p * static_cast<double>(total) + 1.0;
  }
  if (limits_count) {
    keep_likeliest(true, static_cast<std::uint64_t>(sampling.top_k));
  }
  if (has_top_p) {
    total = total != 0 ? total : mass_from(in_list_, 0).weight;
    const double target = ceil(top_p * static_cast<double>(total));
    keep_likeliest(false, max(static_cast<std::uint64_t>(target), std::uint64_t{1}));
  }
  const std::uint64_t kept = mass_from(in_list_, 0).weight;
  // floor(kept * uniform), the uniform number having 24 bits.
  const std::uint64_t uniform = philox_word(sampling.seed, position) >> 8;
  return pick((kept >> 24) * uniform + (((kept & 0xffffffU) * uniform) >> 24));
}

}  // namespace fastfd::kernels::cuda
