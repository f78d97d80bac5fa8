#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sampling/op.h"

namespace fastfd::kernels {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

std::vector<float> adjusted_logits(const SamplingRow& row, std::int64_t vocab_size) {
  const SamplingParams& params = *row.params;
  std::vector<float> logits(row.logits, row.logits + vocab_size);
  const auto add = [&](TokenId token, float value) {
    if (token >= 0 && token < vocab_size) {
      logits[static_cast<std::size_t>(token)] += value;
    }
  };
  if (row.counts != nullptr) {
    for (const auto& [token, count] : *row.counts) {
      if (token < 0 || token >= vocab_size) {
        continue;
      }
      float& logit = logits[static_cast<std::size_t>(token)];
      if (params.repetition_penalty != 1.0F) {
        logit =
            logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      }
      if (count > 0) {
        logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
      }
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    add(token, bias);
  }
  if (row.num_generated < params.min_tokens) {
    for (const TokenId token : params.stop_token_ids) {
      add(token, kBanned);
    }
  }
  return logits;
}

/// Token ids by descending value, ties by the lower id.
std::vector<TokenId> sorted_ids(const std::vector<float>& values) {
  std::vector<TokenId> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  return ids;
}

TokenId draw(const std::vector<float>& logits, std::vector<TokenId> ids, const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  const double largest = logits[static_cast<std::size_t>(ids[0])];
  const auto probability = [&](TokenId token) {
    return std::exp((logits[static_cast<std::size_t>(token)] - largest) / params.temperature);
  };
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < ids.size()) {
    ids.resize(static_cast<std::size_t>(params.top_k));
  }
  while (ids.size() > 1 && probability(ids.back()) < params.min_p) {
    ids.pop_back();
  }
  double total = 0.0;
  for (const TokenId token : ids) {
    total += probability(token);
  }
  double kept = 0.0;
  std::size_t num_kept = 0;
  while (num_kept < ids.size() &&
         (num_kept == 0 || params.top_p >= 1.0F || kept < params.top_p * total)) {
    kept += probability(ids[num_kept++]);
  }
  ids.resize(num_kept);
  std::sort(ids.begin(), ids.end());
  const double target = sampling_uniform(params.seed, row.position) * kept;
  double cumulative = 0.0;
  for (const TokenId token : ids) {
    cumulative += probability(token);
    if (cumulative > target) {
      return token;
    }
  }
  return ids.back();
}

}  // namespace

void reference_sampling(std::span<const SamplingRow> rows, std::int64_t vocab_size,
                        std::span<SamplingOutput> outputs) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SamplingRow& row = rows[i];
    SamplingOutput& output = outputs[i];
    const auto logits = adjusted_logits(row, vocab_size);
    const auto ids = sorted_ids(logits);
    output.token = row.params->temperature == 0.0F ? ids[0] : draw(logits, ids, row);
    output.logprob = 0.0F;
    output.top_logprobs.clear();
    if (row.params->num_logprobs < 0) {
      continue;
    }
    const std::vector<float> raw(row.logits, row.logits + vocab_size);
    const auto raw_ids = sorted_ids(raw);
    const double largest = raw[static_cast<std::size_t>(raw_ids[0])];
    double total = 0.0;
    for (const float logit : raw) {
      total += std::exp(logit - largest);
    }
    const auto logprob = [&](TokenId token) {
      return static_cast<float>(raw[static_cast<std::size_t>(token)] - largest - std::log(total));
    };
    output.logprob = logprob(output.token);
    for (std::int64_t n = 0; n < std::min<std::int64_t>(row.params->num_logprobs, vocab_size);
         ++n) {
      const TokenId token = raw_ids[static_cast<std::size_t>(n)];
      output.top_logprobs.push_back({token, logprob(token)});
    }
  }
}

}  // namespace fastfd::kernels
