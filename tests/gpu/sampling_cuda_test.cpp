#include <cmath>
#include <limits>

#include "attention_support.h"
#include "kernels/sampling/op.h"
#include "kernels/sampling/op_cuda.h"

namespace fastfd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One sample of a batch.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  kernels::TokenCounts counts = {};
  std::uint32_t position = 0;
  std::uint32_t num_generated = 0;
};

struct Outcome {
  std::vector<kernels::cuda::SampledRow> rows;
  std::vector<TokenId> last_tokens;
  std::vector<std::uint32_t> counts;  ///< [num_cases, vocab_size]
};

/// Samples all cases in one launch; the slots are the cases in reverse.
Outcome run(const std::vector<Case>& cases, bool aborted = false) {
  const std::size_t vocab_size = cases[0].logits.size();
  std::vector<float> logits;
  std::vector<layout::LaneSample> samples;
  std::vector<kernels::cuda::SlotSampling> slots(cases.size());
  std::vector<kernels::cuda::LogitBias> biases(1);
  std::vector<TokenId> stop_tokens(1);
  std::vector<kernels::cuda::TokenHistory> histories;
  std::vector<TokenId> tokens(1);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    const SamplingParams& params = one.params;
    logits.insert(logits.end(), one.logits.begin(), one.logits.end());
    const auto slot = static_cast<SlotId>(cases.size() - 1 - i);
    samples.push_back({.slot = slot, .position = one.position, .num_generated = one.num_generated});
    slots[slot] = kernels::cuda::slot_sampling(params);
    slots[slot].counts_row = params.has_penalties() ? static_cast<std::int32_t>(i) : -1;
    slots[slot].first_bias = static_cast<std::uint32_t>(biases.size());
    slots[slot].first_stop_token = static_cast<std::uint32_t>(stop_tokens.size());
    for (const auto& [token, bias] : params.logit_bias) {
      biases.push_back({token, bias});
    }
    stop_tokens.insert(stop_tokens.end(), params.stop_token_ids.begin(),
                       params.stop_token_ids.end());
    kernels::cuda::TokenHistory history{.counts_row = slots[slot].counts_row,
                                        .first_token = static_cast<std::uint32_t>(tokens.size())};
    for (const auto& [token, count] : one.counts) {
      if (count == 0) {
        tokens.push_back(token);
        ++history.num_prompt_tokens;
      }
    }
    for (const auto& [token, count] : one.counts) {
      tokens.insert(tokens.end(), count, token);
      history.num_output_tokens += count;
    }
    histories.push_back(history);
  }
  layout::LaneControl control;
  control.num_samples = static_cast<std::uint32_t>(cases.size());
  layout::AbortState abort;
  abort.aborted = aborted ? 1 : 0;
  // The bucket holds two samples more.
  samples.resize(samples.size() + 2);
  logits.resize(samples.size() * vocab_size);
  const DeviceArray<layout::LaneControl> device_control(std::vector{control});
  const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
  const DeviceArray<layout::LaneSample> device_samples(samples);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<kernels::cuda::SlotSampling> device_slots(slots);
  const DeviceArray<kernels::cuda::LogitBias> device_biases(biases);
  const DeviceArray<TokenId> device_stops(stop_tokens);
  const DeviceArray<kernels::cuda::TokenHistory> device_histories(histories);
  const DeviceArray<TokenId> device_tokens(tokens);
  DeviceArray<float> adjusted(logits.size());
  DeviceArray<std::uint32_t> counts(cases.size() * vocab_size);
  DeviceArray<TokenId> last_tokens(std::vector<TokenId>(cases.size(), -5));
  DeviceArray<kernels::cuda::SampledRow> results(samples.size());
  EXPECT_TRUE(kernels::cuda::launch_set_token_counts(
                  {.num_histories = static_cast<std::int64_t>(histories.size()),
                   .vocab_size = static_cast<std::int64_t>(vocab_size),
                   .histories = device_histories.data(),
                   .tokens = device_tokens.data(),
                   .token_counts = counts.data()},
                  nullptr)
                  .is_ok());
  const Status status =
      kernels::cuda::launch_sampling({.max_samples = static_cast<std::int64_t>(samples.size()),
                                      .vocab_size = static_cast<std::int64_t>(vocab_size),
                                      .control = device_control.data(),
                                      .abort = device_abort.data(),
                                      .samples = device_samples.data(),
                                      .logits = device_logits.data(),
                                      .adjusted = adjusted.data(),
                                      .slots = device_slots.data(),
                                      .logit_biases = device_biases.data(),
                                      .stop_tokens = device_stops.data(),
                                      .token_counts = counts.data(),
                                      .last_tokens = last_tokens.data(),
                                      .results = results.data()},
                                     nullptr);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return {results.get(), last_tokens.get(), counts.get()};
}

void expect_equal(const Case& one, std::size_t index, const Outcome& outcome,
                  std::size_t num_cases) {
  const std::size_t vocab_size = one.logits.size();
  const kernels::SamplingRow row{.logits = one.logits.data(),
                                 .params = &one.params,
                                 .counts = one.counts.empty() ? nullptr : &one.counts,
                                 .position = one.position,
                                 .num_generated = one.num_generated};
  kernels::SamplingOutput expected;
  kernels::reference_sampling({&row, 1}, static_cast<std::int64_t>(vocab_size), {&expected, 1});
  const auto& actual = outcome.rows[index];
  EXPECT_EQ(actual.token, expected.token);
  EXPECT_EQ(outcome.last_tokens[num_cases - 1 - index], expected.token);
  EXPECT_NEAR(actual.logprob, expected.logprob, 2e-5 * (1.0 + std::abs(expected.logprob)));
  ASSERT_EQ(actual.num_top, expected.top_logprobs.size());
  for (std::size_t i = 0; i < expected.top_logprobs.size(); ++i) {
    EXPECT_EQ(actual.top[i].token, expected.top_logprobs[i].token) << i;
    const float logprob = expected.top_logprobs[i].logprob;
    EXPECT_NEAR(actual.top[i].logprob, logprob, 2e-5 * (1.0 + std::abs(logprob))) << i;
  }
  if (!one.params.has_penalties()) {
    return;
  }
  std::vector<std::uint32_t> counts(vocab_size);
  for (const auto& [token, count] : one.counts) {
    counts[static_cast<std::size_t>(token)] += count == 0 ? kernels::cuda::kInPrompt : count;
  }
  ++counts[static_cast<std::size_t>(expected.token)];
  const auto first = outcome.counts.begin() + static_cast<std::ptrdiff_t>(index * vocab_size);
  EXPECT_TRUE(std::equal(counts.begin(), counts.end(), first));
}

void expect_reference(const std::vector<Case>& cases) {
  const Outcome outcome = run(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i) + " over " + std::to_string(cases[i].logits.size()));
    expect_equal(cases[i], i, outcome, cases.size());
  }
  // Past the batch: poison.
  EXPECT_EQ(outcome.rows[cases.size()].token, -1);
  EXPECT_TRUE(std::isnan(outcome.rows[cases.size()].logprob));
}

/// Peaked like a model's, flat, with many ties, and all equal.
std::vector<std::vector<float>> logit_rows(std::size_t vocab_size) {
  std::vector<std::vector<float>> rows = {
      random_floats(vocab_size, 1, 2.0F), random_floats(vocab_size, 2, 1.0F),
      random_floats(vocab_size, 3, 1.5F), std::vector<float>(vocab_size, -3.5F)};
  for (std::size_t i = 0; i < vocab_size; i += 1 + vocab_size / 40) {
    rows[0][i] += 9.0F;
  }
  for (float& logit : rows[2]) {
    logit = std::round(logit);
  }
  return rows;
}

SamplingParams sampled(float temperature, float top_p, std::int32_t top_k, float min_p,
                       std::int32_t num_logprobs = -1) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
  params.min_p = min_p;
  params.num_logprobs = num_logprobs;
  return params;
}

std::vector<SamplingParams> all_filters() {
  return {sampled(0.0F, 1.0F, 0, 0.0F, 20),  sampled(1.0F, 1.0F, 0, 0.0F, 0),
          sampled(0.7F, 1.0F, 1, 0.0F, 1),   sampled(1.3F, 1.0F, 50, 0.0F),
          sampled(1.0F, 1.0F, 900, 0.0F, 5), sampled(1.0F, 1.0F, 2500, 0.0F),
          sampled(1.0F, 0.9F, 0, 0.0F),      sampled(2.0F, 0.5F, 0, 0.0F, 20),
          sampled(0.6F, 0.95F, 20, 0.0F, 3), sampled(1.0F, 0.999F, 0, 0.0F),
          sampled(1.0F, 0.01F, 0, 0.0F),     sampled(1.0F, 1.0F, 0, 0.05F),
          sampled(1.5F, 0.8F, 2000, 0.02F),  sampled(0.8F, 0.9F, 40, 0.3F, 7),
          sampled(1e-6F, 0.9F, 0, 0.1F),     sampled(1.0F, 0.7F, 3000, 0.0F)};
}

TEST(SamplingCudaTest, ChoosesTheReferencesTokens) {
  for (const std::size_t vocab_size : {1, 2, 37, 1000, 5003, 40000}) {
    std::vector<Case> cases;
    for (const auto& logits : logit_rows(vocab_size)) {
      for (SamplingParams params : all_filters()) {
        for (std::uint32_t draw = 0; draw < (vocab_size < 2000 ? 3U : 1U); ++draw) {
          params.seed = 77 * cases.size() + (std::uint64_t{draw} << 40);
          cases.push_back({.logits = logits,
                           .params = params,
                           .position = static_cast<std::uint32_t>(11 + 3 * cases.size())});
        }
      }
    }
    expect_reference(cases);
  }
}

TEST(SamplingCudaTest, ChoosesTheReferencesTokensFromALargeVocabulary) {
  std::vector<Case> cases;
  for (const auto& logits : logit_rows(151936)) {
    for (SamplingParams params :
         {sampled(0.0F, 1.0F, 0, 0.0F, 5), sampled(1.0F, 1.0F, 0, 0.0F),
          sampled(1.0F, 0.95F, 0, 0.0F), sampled(0.7F, 0.8F, 20, 0.0F, 0)}) {
      params.seed = 5 + cases.size();
      cases.push_back({.logits = logits, .params = params, .position = 1000});
    }
  }
  expect_reference(cases);
}

TEST(SamplingCudaTest, AdjustsLogitsAsTheReferenceDoes) {
  std::vector<Case> cases;
  for (const std::size_t vocab_size : {std::size_t{3000}}) {
    const auto rows = logit_rows(vocab_size);
    for (const auto& logits : rows) {
      for (SamplingParams params :
           {sampled(0.0F, 1.0F, 0, 0.0F, 2), sampled(1.0F, 0.9F, 0, 0.0F, 0),
            sampled(0.9F, 1.0F, 30, 0.0F)}) {
        params.presence_penalty = 1.5F;
        params.frequency_penalty = 0.7F;
        cases.push_back({.logits = logits,
                         .params = params,
                         .counts = {{0, 3}, {76, 1}, {2999, 20}, {5, 1}},
                         .position = 9});
        params.repetition_penalty = 1.3F;
        cases.push_back({.logits = logits,
                         .params = params,
                         .counts = {{0, 3}, {1, 0}, {75, 0}, {76, 1}, {2999, 20}},
                         .position = 9});
        params.presence_penalty = 0.0F;
        params.frequency_penalty = 0.0F;
        cases.push_back({.logits = logits,
                         .params = params,
                         .counts = {{0, 0}, {1, 1}, {75, 0}, {2998, 2}},
                         .position = 9});
        params.repetition_penalty = 1.0F;
        params.logit_bias = {{17, 8.0F}, {0, -100.0F}, {152, 3.25F}, {-1, 5.0F}, {3000, 5.0F}};
        cases.push_back({.logits = logits, .params = params, .position = 10});
        params.min_tokens = 4;
        params.stop_token_ids = {17, 76, 0, 5000};
        cases.push_back({.logits = logits, .params = params, .position = 11, .num_generated = 3});
        cases.push_back({.logits = logits, .params = params, .position = 12, .num_generated = 4});
      }
    }
  }
  expect_reference(cases);
}

TEST(SamplingCudaTest, DrawsFollowTheProbabilities) {
  std::vector<Case> cases;
  for (std::uint32_t position = 0; position < 4000; ++position) {
    cases.push_back({.logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)},
                     .params = sampled(1.0F, 1.0F, 0, 0.0F),
                     .position = position});
  }
  std::vector<int> drawn(3);
  const Outcome outcome = run(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ++drawn[static_cast<std::size_t>(outcome.rows[i].token)];
  }
  EXPECT_NEAR(drawn[0], 2000, 130);
  EXPECT_NEAR(drawn[1], 1200, 120);
  EXPECT_NEAR(drawn[2], 800, 105);
}

TEST(SamplingCudaTest, ARowWithoutAnAnswerIsMarked) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SamplingParams greedy = sampled(0.0F, 1.0F, 0, 0.0F, 2);
  SamplingParams banned = greedy;
  banned.min_tokens = 1;
  banned.stop_token_ids = {0, 1, 2};
  const Outcome outcome = run({{.logits = {1.0F, kNan, 0.0F}, .params = greedy},
                               {.logits = {1.0F, kInfinity, 0.0F}, .params = greedy},
                               {.logits = {-kInfinity, -kInfinity, -kInfinity}, .params = greedy},
                               {.logits = {1.0F, 2.0F, 0.0F}, .params = banned},
                               {.logits = {1.0F, -kInfinity, 3.0F}, .params = greedy}});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcome.rows[i].token, kNoToken) << i;
    EXPECT_EQ(outcome.last_tokens[4 - i], kNoToken) << i;
  }
  EXPECT_EQ(outcome.rows[4].token, 2);
}

TEST(SamplingCudaTest, AnAbortedEpochWritesNothing) {
  const Outcome outcome =
      run({{.logits = {1.0F, 2.0F}, .params = sampled(1.0F, 1.0F, 0, 0.0F)}}, true);
  EXPECT_EQ(outcome.last_tokens[0], -5);
  EXPECT_TRUE(std::isnan(outcome.rows[0].logprob));
}

}  // namespace
}  // namespace fastfd::testing
