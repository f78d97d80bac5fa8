#pragma once

/// One block chooses one token. Candidates go to a short list in shared memory where that provably
/// holds everything needed; else a threshold is bisected, with the count or weight above it summed
/// over the whole row until what is in question fits the list.

#include <cstdint>

#include "kernels/sampling/op_cuda.h"
#include "kernels/sampling/row_reader.cuh"

namespace fastfd::kernels::cuda {

struct SamplingShared {
  Mass masses[kSamplingWarps];
  std::uint64_t words[kSamplingWarps];
  double doubles[kSamplingWarps];
  std::uint64_t weights[kSamplingThreads];  ///< of a list with a token a thread
  Cut cut;
  std::uint32_t num_top;
  TokenId chosen;
  std::uint64_t top[kMaxTopLogprobs];
  TokenList list;
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
      : row_(logits, vocab_size), shared_(shared) {}

  __device__ void set_row(const float* logits) { row_ = RowReader(logits, row_.vocab_size()); }

  __device__ RowMaximum find_maximum();

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
  /// Mass of the kept tokens whose logit is at least `bound`.
  __device__ Mass mass_from(bool in_list, float bound);
  __device__ std::uint32_t kth_thread_key(std::uint32_t k, std::uint32_t thread_key);
  /// Lists the kept tokens with a logit in [low, high); returns the row's weight if asked.
  __device__ std::uint64_t collect(float low, float high, bool wants_total);
  /// Drops what is not needed to reach `target`, counted or weighed, from the likeliest down.
  __device__ void keep_likeliest(bool by_count, std::uint64_t target);
  __device__ void keep_likeliest_of_short_list(bool by_count, std::uint64_t target);
  /// The kept tokens share [0, 2^24) in ascending id: the one that `uniform` falls on.
  __device__ TokenId pick(std::uint32_t uniform);
  __device__ TokenId pick_from_short_list(std::uint32_t uniform);
  __device__ TokenId pick_from_list(std::uint32_t uniform);
  __device__ TokenId pick_from_row(std::uint32_t uniform);

  RowReader row_;
  SamplingShared& shared_;
  Weigher weigh_;
  Cut cut_;               ///< what is kept
  bool in_list_ = false;  ///< the list holds every kept token
};

/// floor(total * uniform / 2^24).
__device__ __forceinline__ std::uint64_t point_of(std::uint64_t total, std::uint32_t uniform) {
  return (total >> 24) * uniform + (((total & 0xffffffU) * uniform) >> 24);
}

template <typename Visit>
__device__ void RowSampler::for_each(bool in_list, Visit visit) const {
  if (in_list) {
    for (std::uint32_t i = threadIdx.x; i < shared_.list.size; i += kSamplingThreads) {
      visit(shared_.list.tokens[i], shared_.list.logits[i]);
    }
  } else {
    row_.for_each(visit);
  }
}

__device__ inline Mass RowSampler::sum(Mass mass) {
  static_assert(kSamplingWarps == kWarpSize);
#pragma unroll
  for (int round = 0; round < 2; ++round) {
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      mass = mass + Mass{__shfl_xor_sync(kAllLanes, mass.weight, offset),
                         __shfl_xor_sync(kAllLanes, mass.count, offset)};
    }
    if (round == 0) {
      if (threadIdx.x % kWarpSize == 0) {
        shared_.masses[threadIdx.x / kWarpSize] = mass;
      }
      __syncthreads();
      mass = shared_.masses[threadIdx.x % kWarpSize];
    }
  }
  __syncthreads();
  return mass;
}

__device__ inline RowMaximum RowSampler::find_maximum() {
  constexpr float kInfinity = __builtin_inff();
  float largest = -kInfinity;
  std::uint32_t token_of_largest = 0;
  bool is_bad = false;
  row_.for_each([&](std::uint32_t token, float logit) {
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
  maximum.logit = maximum.is_valid ? row_[static_cast<std::uint32_t>(maximum.token)] : 0.0F;
  maximum.thread_key = static_cast<std::uint32_t>(rank >> 32);
  return maximum;
}

__device__ inline double RowSampler::log_total(float largest) {
  float total = 0.0F;
  row_.for_each([&](std::uint32_t, float logit) { total += __expf(logit - largest); });
  const double sum =
      reduce_block<kSamplingThreads>(static_cast<double>(total), 0.0, shared_.doubles, Sum{});
  return static_cast<double>(largest) + log(sum);
}

__device__ inline Mass RowSampler::mass_from(bool in_list, float bound) {
  Mass mass;
  for_each(in_list, [&](std::uint32_t token, float logit) {
    if (logit >= bound && cut_.keeps(token, logit)) {
      mass.weight += weigh_(logit);
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

__device__ inline std::uint64_t RowSampler::collect(float low, float high, bool wants_total) {
  TokenList& list = shared_.list;
  if (threadIdx.x == 0) {
    list.size = 0;
  }
  __syncthreads();
  Mass all;
  row_.for_each([&](std::uint32_t token, float logit) {
    if (wants_total) {
      all.weight += weigh_(logit);
    }
    if (logit >= low && logit < high && cut_.keeps(token, logit)) {
      const std::uint32_t at = atomicAdd(&list.size, 1U);
      if (at < kListCapacity) {
        list.logits[at] = logit;
        list.tokens[at] = token;
      }
    }
  });
  __syncthreads();
  return wants_total ? sum(all).weight : 0;
}

/// Each thread has a token and adds up what is likelier.
__device__ inline void RowSampler::keep_likeliest_of_short_list(bool by_count,
                                                                std::uint64_t target) {
  const TokenList& list = shared_.list;
  const bool has_token = threadIdx.x < list.size;
  const float logit = has_token ? list.logits[threadIdx.x] : 0.0F;
  const std::uint32_t token = has_token ? list.tokens[threadIdx.x] : 0;
  const bool was_kept = has_token && cut_.keeps(token, logit);
  shared_.weights[threadIdx.x] = was_kept ? weigh_(logit) : 0;
  __syncthreads();
  Mass likelier;
  const Cut own{logit, token};
  for (std::uint32_t i = 0; was_kept && i < list.size; ++i) {
    // All that are likelier than a kept token are kept.
    if (i != threadIdx.x && own.keeps(list.tokens[i], list.logits[i])) {
      likelier.weight += shared_.weights[i];
      ++likelier.count;
    }
  }
  const bool is_kept = was_kept && (by_count ? likelier.count : likelier.weight) < target;
  const auto num_kept = static_cast<std::uint32_t>(__syncthreads_count(static_cast<int>(is_kept)));
  if (is_kept && likelier.count == num_kept - 1) {
    shared_.cut = own;
  }
  __syncthreads();
  cut_ = shared_.cut;
}

__device__ inline void RowSampler::keep_likeliest(bool by_count, std::uint64_t target) {
  if (in_list_ && shared_.list.size <= kSamplingThreads) {
    keep_likeliest_of_short_list(by_count, target);
    return;
  }
  const auto is_enough = [&](const Mass& mass) {
    return (by_count ? mass.count : mass.weight) >= target;
  };
  // Invariant: what lies from `low` on is enough, what lies from `high` on is not.
  std::uint32_t low = order_key(cut_.logit);
  std::uint32_t high = order_key(weigh_.largest) + 1;
  Mass from_low = mass_from(in_list_, cut_.logit);
  Mass from_high;
  if (!is_enough(from_low)) {
    return;
  }
  bool in_list = in_list_;
  Mass above;  // of an incomplete list, which holds the keys in [low, high)
  while (high - low > 1) {
    if (!in_list && from_low.count - from_high.count <= kListCapacity) {
      collect(value_of_key(low), value_of_key(high), false);
      in_list = true;
      above = from_high;
    }
    const std::uint32_t middle = low + (high - low) / 2;
    const Mass mass = above + mass_from(in_list, value_of_key(middle));
    if (is_enough(mass)) {
      low = middle;
      from_low = mass;
    } else {
      high = middle;
      from_high = mass;
    }
  }
  // Among equal logits the lower ids come first.
  const float border = value_of_key(low);
  std::uint32_t last = row_.vocab_size() - 1;
  if (from_low.count - from_high.count > 1) {
    std::uint32_t first = 0;
    while (first < last) {
      const std::uint32_t middle = first + (last - first) / 2;
      Mass mass;
      for_each(in_list, [&](std::uint32_t token, float logit) {
        if (logit == border && token <= middle && cut_.keeps(token, logit)) {
          mass.weight += weigh_(logit);
          ++mass.count;
        }
      });
      if (is_enough(from_high + sum(mass))) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
  }
  // The old cut may have been at this very logit.
  cut_ = {border, border == cut_.logit ? min(last, cut_.token) : last};
}

__device__ inline std::uint32_t RowSampler::find_top(std::uint32_t count,
                                                     const RowMaximum& maximum) {
  const std::uint32_t wanted = min(min(count, kMaxTopLogprobs), row_.vocab_size());
  weigh_ = Weigher::of(1.0F, maximum.logit);
  cut_ = Cut{};
  const std::uint32_t key = kth_thread_key(wanted, maximum.thread_key);
  collect(key == 0 ? -__builtin_inff() : value_of_key(key), __builtin_inff(), false);
  in_list_ = shared_.list.size <= kListCapacity;
  keep_likeliest(true, wanted);
  if (threadIdx.x == 0) {
    shared_.num_top = 0;
  }
  __syncthreads();
  for_each(in_list_, [&](std::uint32_t token, float logit) {
    if (cut_.keeps(token, logit)) {
      shared_.words[atomicAdd(&shared_.num_top, 1U)] = rank_of(logit, token);
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

__device__ inline TokenId RowSampler::draw(const SlotSampling& sampling, std::uint32_t position,
                                           const RowMaximum& maximum) {
  constexpr float kInfinity = __builtin_inff();
  weigh_ = Weigher::of(sampling.temperature, maximum.logit);
  cut_ = Cut{};
  in_list_ = false;
  const bool limits_count =
      sampling.top_k > 0 && static_cast<std::uint32_t>(sampling.top_k) < row_.vocab_size();
  const bool has_top_p = sampling.top_p < 1.0F;
  const double top_p = static_cast<double>(sampling.top_p);
  // No token below `bound` can stay.
  float bound = -kInfinity;
  if (sampling.min_p > 0.0F) {
    // The smallest logit whose weight is min_p; the likeliest token always stays.
    const float smallest = __double2float_ru(static_cast<double>(maximum.logit) +
                                             static_cast<double>(sampling.temperature) *
                                                 log(static_cast<double>(sampling.min_p)));
    bound = fminf(smallest, maximum.logit);
    cut_.logit = bound;
  }
  if (limits_count && sampling.top_k <= kSamplingThreads) {
    const std::uint32_t key =
        kth_thread_key(static_cast<std::uint32_t>(sampling.top_k), maximum.thread_key);
    bound = key == 0 ? bound : fmaxf(bound, value_of_key(key));
  }
  std::uint64_t total = 0;
  if (bound > -kInfinity) {
    collect(bound, kInfinity, false);
    in_list_ = shared_.list.size <= kListCapacity;
  } else if (has_top_p && !limits_count) {
    // The nucleus is nearly always among the tokens within a factor of 2^12 of the likeliest.
    total = collect(maximum.logit - 12.0F / weigh_.scale, kInfinity, true);
    in_list_ = shared_.list.size <= kListCapacity &&
               static_cast<double>(mass_from(true, -kInfinity).weight) >
                   top_p * static_cast<double>(total) + 1.0;
  }
  if (limits_count) {
    keep_likeliest(true, static_cast<std::uint64_t>(sampling.top_k));
  }
  if (has_top_p) {
    total = total != 0 ? total : mass_from(in_list_, -kInfinity).weight;
    const double target = ceil(top_p * static_cast<double>(total));
    keep_likeliest(false, max(static_cast<std::uint64_t>(target), std::uint64_t{1}));
  }
  return pick(philox_word(sampling.seed, position) >> 8);
}

}  // namespace fastfd::kernels::cuda
