#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/sampling/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A token that is still in the draw.
struct Candidate {
  TokenId token = kNoToken;
  float logit = 0.0F;
};

/// Likelier first, ties by the lower id.
bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/// The logit of a token that the prompt has, or that was generated `count` times.
float penalised(float logit, std::uint32_t count, const SamplingParams& params) {
  if (params.repetition_penalty != 1.0F) {
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  return count == 0 ? logit
                    : logit - (params.presence_penalty +
                               params.frequency_penalty * static_cast<float>(count));
}

/// One thread's memory: grows to the vocabulary once.
struct Scratch {
  device::HostBuffer logits;
  device::HostBuffer terms;
  std::vector<Candidate> candidates;
  std::vector<double> weights;
};

class RowSampler {
 public:
  RowSampler(const SamplingRow& row, std::int64_t vocab_size, const simd::KernelTable& table,
             Scratch& scratch)
      : row_(row),
        params_(*row.params),
        vocab_size_(vocab_size),
        table_(table),
        scratch_(scratch) {}

  /// False if a logit is NaN or +infinity or no token is left.
  bool run(SamplingOutput& output) {
    bool has_nan = false;
    const float raw_largest = table_.max_element(row_.logits, vocab_size_, &has_nan);
    if (has_nan || raw_largest == kInfinity || raw_largest == -kInfinity) {
      return false;
    }
    largest_ = raw_largest;
    logits_ = adjusted_logits();
    if (logits_ != row_.logits) {
      largest_ = table_.max_element(logits_, vocab_size_, &has_nan);
      if (has_nan || largest_ == -kInfinity) {
        return false;
      }
    }
    output.token = params_.temperature == 0.0F ? likeliest() : draw();
    report(raw_largest, output);
    return true;
  }

 private:
  /// The row's own logits if nothing changes them, else a changed copy.
  const float* adjusted_logits() {
    const bool has_counts =
        params_.has_penalties() && row_.counts != nullptr && !row_.counts->empty();
    const bool bans_stops =
        row_.num_generated < params_.min_tokens && !params_.stop_token_ids.empty();
    if (!has_counts && !bans_stops && params_.logit_bias.empty()) {
      return row_.logits;
    }
    float* logits = simd::reserve<float>(scratch_.logits, vocab_size_);
    std::copy_n(row_.logits, vocab_size_, logits);
    const auto add = [&](TokenId token, float value) {
      if (token >= 0 && token < vocab_size_) {
        logits[token] += value;
      }
    };
    if (has_counts) {
      for (const auto& [token, count] : *row_.counts) {
        if (token >= 0 && token < vocab_size_) {
          logits[token] = penalised(logits[token], count, params_);
        }
      }
    }
    for (const auto& [token, bias] : params_.logit_bias) {
      add(token, bias);
    }
    if (bans_stops) {
      for (const TokenId token : params_.stop_token_ids) {
        add(token, -kInfinity);
      }
    }
    return logits;
  }

  TokenId likeliest() const {
    return static_cast<TokenId>(table_.find_at_least(logits_, 0, vocab_size_, largest_));
  }

  /// The `count` likeliest of `logits`, unordered, into scratch_.candidates: a heap whose top is
  /// the least likely one kept; the scan stops only at tokens that beat it.
  void select_likeliest(const float* logits, std::int64_t count) {
    auto& heap = scratch_.candidates;
    heap.clear();
    std::int64_t token = 0;
    for (; token < std::min(count, vocab_size_); ++token) {
      heap.push_back({static_cast<TokenId>(token), logits[token]});
    }
    std::make_heap(heap.begin(), heap.end(), is_likelier);
    for (;;) {
      // Ids ascend, so an equal logit loses the tie: only a greater one gets in.
      const float bound = std::nextafter(heap.front().logit, kInfinity);
      token = table_.find_at_least(logits, token, vocab_size_, bound);
      if (token >= vocab_size_) {
        return;
      }
      std::pop_heap(heap.begin(), heap.end(), is_likelier);
      heap.back() = {static_cast<TokenId>(token), logits[token]};
      std::push_heap(heap.begin(), heap.end(), is_likelier);
      ++token;
    }
  }

  double weight_of(float logit) const {
    return std::exp((static_cast<double>(logit) - static_cast<double>(largest_)) /
                    static_cast<double>(params_.temperature));
  }

  float scale() const {
    // Finite for the smallest temperature, so that the likeliest token's exponent stays 0.
    return std::min(1.0F / params_.temperature, std::numeric_limits<float>::max());
  }

  TokenId draw() {
    const bool limits_count = params_.top_k > 0 && params_.top_k < vocab_size_;
    if (!limits_count && params_.min_p <= 0.0F && params_.top_p >= 1.0F) {
      return draw_from_all();
    }
    if (limits_count) {
      select_likeliest(logits_, params_.top_k);
      drop_below_min_p();
      keep_nucleus(candidate_sum());
      return draw_from_candidates();
    }
    float* terms = simd::reserve<float>(scratch_.terms, vocab_size_);
    const double total = table_.exp_sum(logits_, vocab_size_, largest_, scale(), terms);
    if (params_.min_p > 0.0F) {
      collect_at_least(terms, params_.min_p * 0.999F);
      drop_below_min_p();
      keep_nucleus(candidate_sum());
      return draw_from_candidates();
    }
    // The nucleus is nearly always among the tokens within a factor of the likeliest: sort only
    // those, and more if they do not suffice.
    for (const float factor : {0x1p-6F, 0x1p-12F, 0.0F}) {
      collect_at_least(terms, factor);
      if (candidate_sum() >= static_cast<double>(params_.top_p) * total) {
        break;
      }
    }
    keep_nucleus(total);
    return draw_from_candidates();
  }

  double candidate_sum() const {
    double sum = 0.0;
    for (const Candidate& candidate : scratch_.candidates) {
      sum += weight_of(candidate.logit);
    }
    return sum;
  }

  void drop_below_min_p() {
    if (params_.min_p > 0.0F) {
      std::erase_if(scratch_.candidates, [this](const Candidate& candidate) {
        return candidate.logit != largest_ && weight_of(candidate.logit) < params_.min_p;
      });
    }
  }

  /// Candidates whose probability is at least `factor` of the likeliest one's.
  void collect_at_least(const float* terms, float factor) {
    scratch_.candidates.clear();
    for (std::int64_t token = table_.find_at_least(terms, 0, vocab_size_, factor);
         token < vocab_size_; token = table_.find_at_least(terms, token + 1, vocab_size_, factor)) {
      scratch_.candidates.push_back({static_cast<TokenId>(token), logits_[token]});
    }
  }

  /// Keeps the smallest set of likeliest candidates that holds top_p of `total`.
  void keep_nucleus(double total) {
    if (params_.top_p >= 1.0F) {
      return;
    }
    auto& candidates = scratch_.candidates;
    std::sort(candidates.begin(), candidates.end(), is_likelier);
    const double target = static_cast<double>(params_.top_p) * total;
    double kept = 0.0;
    std::size_t num_kept = 0;
    while (num_kept < candidates.size() && (num_kept == 0 || kept < target)) {
      kept += weight_of(candidates[num_kept++].logit);
    }
    candidates.resize(num_kept);
  }

  TokenId draw_from_candidates() {
    auto& candidates = scratch_.candidates;
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    scratch_.weights.clear();
    double total = 0.0;
    for (const Candidate& candidate : candidates) {
      scratch_.weights.push_back(weight_of(candidate.logit));
      total += scratch_.weights.back();
    }
    const double target = sampling_uniform(params_.seed, row_.position) * total;
    double cumulative = 0.0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      cumulative += scratch_.weights[i];
      if (cumulative > target) {
        return candidates[i].token;
      }
    }
    return candidates.back().token;
  }

  /// Without filters every token takes part: whole blocks are skipped until the one that holds the
  /// drawn point, which is walked token by token.
  TokenId draw_from_all() {
    constexpr std::int64_t kBlock = 512;
    float* terms = simd::reserve<float>(scratch_.terms, vocab_size_);
    auto& sums = scratch_.weights;
    sums.clear();
    double total = 0.0;
    for (std::int64_t first = 0; first < vocab_size_; first += kBlock) {
      const std::int64_t num = std::min(kBlock, vocab_size_ - first);
      sums.push_back(table_.exp_sum(logits_ + first, num, largest_, scale(), terms + first));
      total += sums.back();
    }
    const double target = sampling_uniform(params_.seed, row_.position) * total;
    double cumulative = 0.0;
    std::size_t block = 0;
    while (block + 1 < sums.size() && cumulative + sums[block] <= target) {
      cumulative += sums[block++];
    }
    // A block's sum and the walk over it may differ in the last digit: the last token that has any
    // probability then takes the remainder.
    const std::int64_t first = static_cast<std::int64_t>(block) * kBlock;
    TokenId last = likeliest();
    for (std::int64_t token = first; token < std::min(first + kBlock, vocab_size_); ++token) {
      if (terms[token] == 0.0F) {
        continue;
      }
      last = static_cast<TokenId>(token);
      cumulative += static_cast<double>(terms[token]);
      if (cumulative > target) {
        break;
      }
    }
    return last;
  }

  void report(float raw_largest, SamplingOutput& output) {
    output.logprob = 0.0F;
    output.top_logprobs.clear();
    if (params_.num_logprobs < 0) {
      return;
    }
    const double log_total =
        static_cast<double>(raw_largest) +
        std::log(table_.exp_sum(row_.logits, vocab_size_, raw_largest, 1.0F, nullptr));
    const auto logprob = [&](float logit) {
      return static_cast<float>(static_cast<double>(logit) - log_total);
    };
    output.logprob = logprob(row_.logits[output.token]);
    if (params_.num_logprobs == 0) {
      return;
    }
    select_likeliest(row_.logits, params_.num_logprobs);
    std::sort(scratch_.candidates.begin(), scratch_.candidates.end(), is_likelier);
    for (const Candidate& candidate : scratch_.candidates) {
      output.top_logprobs.push_back({candidate.token, logprob(candidate.logit)});
    }
  }

  const SamplingRow& row_;
  const SamplingParams& params_;
  const std::int64_t vocab_size_;
  const simd::KernelTable& table_;
  Scratch& scratch_;
  const float* logits_ = nullptr;
  float largest_ = 0.0F;
};

}  // namespace

Status launch_sampling(std::span<const SamplingRow> rows, std::int64_t vocab_size,
                       std::span<SamplingOutput> outputs, const device::CpuStream& stream) {
  if (vocab_size < 1 || outputs.size() < rows.size()) {
    return {StatusCode::kInvalidArgument,
            "sampling: needs a vocabulary and an output for every row"};
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  const auto elements = static_cast<double>(num_rows * vocab_size);
  simd::split(stream, num_rows, 1, simd::estimated_microseconds(20.0 * elements, 4.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                thread_local Scratch scratch;
                for (std::int64_t i = begin; i < end; ++i) {
                  const auto index = static_cast<std::size_t>(i);
                  if (!RowSampler(rows[index], vocab_size, table, scratch).run(outputs[index])) {
                    outputs[index] = {};
                  }
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
