#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/sampling/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class SamplingTest : public KernelTest {
 protected:
  SamplingOutput sample(const SamplingRow& row, std::size_t vocab_size) const {
    SamplingOutput output;
    const Status status =
        launch_sampling({&row, 1}, static_cast<std::int64_t>(vocab_size), {&output, 1}, stream());
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    return output;
  }
};
INSTANTIATE_TEST_SUITE_P(AllBackends, SamplingTest, ::testing::ValuesIn(backends()), backend_name);

SamplingOutput reference(const SamplingRow& row, std::size_t vocab_size) {
  SamplingOutput output;
  reference_sampling({&row, 1}, static_cast<std::int64_t>(vocab_size), {&output, 1});
  return output;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

/// Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformIsAFunctionOfSeedAndPosition) {
  EXPECT_EQ(sampling_uniform(5, 7), sampling_uniform(5, 7));
  EXPECT_NE(sampling_uniform(5, 7), sampling_uniform(5, 8));
  EXPECT_NE(sampling_uniform(5, 7), sampling_uniform(6, 7));
  EXPECT_NE(sampling_uniform(5, 7), sampling_uniform(5 + (std::uint64_t{1} << 32), 7));
  EXPECT_EQ(sampling_uniform(0, 0), static_cast<float>(0x6627e8d5U >> 8) / 16777216.0F);
  double sum = 0.0;
  for (std::uint32_t i = 0; i < 10000; ++i) {
    const float u = sampling_uniform(123, i);
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST_P(SamplingTest, GreedyTakesTheLowestIdOfEqualLogits) {
  const SamplingParams params = greedy();
  for (const std::size_t vocab : {1, 3, 64, 101, 6144}) {
    for (const std::size_t first : {std::size_t{0}, vocab / 2, vocab - 1}) {
      std::vector<float> logits(vocab, -1.0F);
      for (std::size_t i = first; i < vocab; i += 3) {
        logits[i] = 2.5F;
      }
      const SamplingRow row{.logits = logits.data(), .params = &params};
      EXPECT_EQ(sample(row, vocab).token, static_cast<TokenId>(first)) << vocab;
    }
  }
}

/// Settings over which kernel and reference must agree.
std::vector<SamplingParams> many_params() {
  std::vector<SamplingParams> all;
  for (const float temperature : {0.0F, 0.3F, 1.0F, 1.7F}) {
    for (const std::int32_t top_k : {0, 1, 5, 200, 100000}) {
      for (const float top_p : {1.0F, 0.95F, 0.5F, 1e-6F}) {
        for (const float min_p : {0.0F, 0.05F, 0.9F}) {
          SamplingParams params;
          params.temperature = temperature;
          params.top_k = top_k;
          params.top_p = top_p;
          params.min_p = min_p;
          params.seed = 1 + all.size();
          params.num_logprobs = static_cast<std::int32_t>(all.size() % 8) - 1;
          all.push_back(params);
        }
      }
    }
  }
  return all;
}

TEST_P(SamplingTest, EqualsTheReference) {
  for (const std::size_t vocab : {1, 7, 130, 2053}) {
    auto logits = random_floats(vocab, static_cast<std::uint32_t>(vocab), 3.0F);
    // Coarse values make ties.
    for (std::size_t i = 0; i < vocab; i += 2) {
      logits[i] = std::round(logits[i]);
    }
    std::uint32_t position = 0;
    for (const SamplingParams& params : many_params()) {
      const SamplingRow row{.logits = logits.data(), .params = &params, .position = position++};
      const auto actual = sample(row, vocab);
      const auto expected = reference(row, vocab);
      ASSERT_EQ(actual.token, expected.token)
          << "vocabulary " << vocab << ", temperature " << params.temperature << ", top_k "
          << params.top_k << ", top_p " << params.top_p << ", min_p " << params.min_p;
      ASSERT_NEAR(actual.logprob, expected.logprob, 1e-5F);
      ASSERT_EQ(actual.top_logprobs.size(), expected.top_logprobs.size());
      for (std::size_t i = 0; i < actual.top_logprobs.size(); ++i) {
        ASSERT_EQ(actual.top_logprobs[i].token, expected.top_logprobs[i].token);
        ASSERT_NEAR(actual.top_logprobs[i].logprob, expected.top_logprobs[i].logprob, 1e-5F);
      }
    }
  }
}

TEST_P(SamplingTest, FlatDistributionsNeedTheWholeVocabulary) {
  const std::size_t vocab = 3000;
  const auto logits = random_floats(vocab, 4, 0.01F);
  SamplingParams params;
  params.top_p = 0.9F;
  for (std::uint32_t position = 0; position < 20; ++position) {
    const SamplingRow row{.logits = logits.data(), .params = &params, .position = position};
    EXPECT_EQ(sample(row, vocab).token, reference(row, vocab).token);
  }
}

TEST_P(SamplingTest, DrawsFollowTheDistribution) {
  const std::vector<float> probabilities = {0.4F, 0.3F, 0.15F, 0.1F, 0.05F};
  std::vector<float> logits;
  logits.reserve(probabilities.size());
  for (const float p : probabilities) {
    logits.push_back(std::log(p));
  }
  SamplingParams params;
  params.seed = 42;
  constexpr int kDraws = 20000;
  std::vector<int> counts(probabilities.size());
  for (std::uint32_t position = 0; position < kDraws; ++position) {
    const SamplingRow row{.logits = logits.data(), .params = &params, .position = position};
    ++counts[static_cast<std::size_t>(sample(row, logits.size()).token)];
  }
  double chi_square = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = static_cast<double>(probabilities[i]) * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 18.47);  // 4 degrees of freedom, p = 0.001; the seed is fixed
}

TEST_P(SamplingTest, FiltersKeepTheLikeliestOnly) {
  const auto logits = random_floats(500, 9, 2.0F);
  const auto best =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (std::uint32_t position = 0; position < 50; ++position) {
    SamplingParams params;
    params.temperature = 5.0F;
    SamplingRow row{.logits = logits.data(), .params = &params, .position = position};
    params.top_k = 1;
    EXPECT_EQ(sample(row, 500).token, best);
    params.top_k = 0;
    params.top_p = 1e-6F;
    EXPECT_EQ(sample(row, 500).token, best);
    params.top_p = 1.0F;
    params.min_p = 0.999F;
    EXPECT_EQ(sample(row, 500).token, best);
    params.min_p = 0.0F;
    params.temperature = 1e-42F;
    EXPECT_EQ(sample(row, 500).token, best);
  }
}

TEST_P(SamplingTest, MinTokensBansStopTokens) {
  std::vector<float> logits(100, 0.0F);
  logits[10] = 9.0F;
  logits[20] = 8.0F;
  logits[30] = 7.0F;
  SamplingParams params = greedy();
  params.stop_token_ids = {10, 20, 1000, -5};
  params.min_tokens = 3;
  SamplingRow row{.logits = logits.data(), .params = &params, .num_generated = 2};
  EXPECT_EQ(sample(row, 100).token, 30);
  row.num_generated = 3;
  EXPECT_EQ(sample(row, 100).token, 10);
}

TEST_P(SamplingTest, LogitBiasAndPenaltiesMoveTheChoiceNotTheLogprob) {
  std::vector<float> logits(70, 0.0F);
  logits[5] = 4.0F;
  logits[6] = 3.5F;
  SamplingParams params = greedy();
  params.num_logprobs = 2;
  SamplingRow row{.logits = logits.data(), .params = &params};
  const auto plain = sample(row, 70);
  EXPECT_EQ(plain.token, 5);

  params.logit_bias = {{5, -100.0F}, {69, 1.0F}, {70, 50.0F}, {-1, 50.0F}};
  const auto biased = sample(row, 70);
  EXPECT_EQ(biased.token, 6);
  EXPECT_EQ(biased.top_logprobs, plain.top_logprobs);
  EXPECT_EQ(biased.logprob, plain.top_logprobs[1].logprob);

  params.logit_bias.clear();
  TokenCounts counts = {{5, 3}, {6, 0}, {5000, 1}};
  row.counts = &counts;
  params.frequency_penalty = 0.1F;
  EXPECT_EQ(sample(row, 70).token, 5);
  params.frequency_penalty = 0.2F;
  EXPECT_EQ(sample(row, 70).token, 6);
  params.frequency_penalty = 0.0F;
  params.presence_penalty = 0.4F;
  EXPECT_EQ(sample(row, 70).token, 5);
  params.presence_penalty = 0.6F;
  EXPECT_EQ(sample(row, 70).token, 6);
  EXPECT_EQ(sample(row, 70).token, reference(row, 70).token);
}

TEST_P(SamplingTest, RepetitionPenaltyDividesWhatIsPositiveAndMultipliesTheRest) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0F;
  const TokenCounts counts = {{0, 0}, {1, 3}, {9, 1}};  // of the prompt alone, generated, unknown
  const auto token_of = [&](std::vector<float> logits) {
    const SamplingRow row{.logits = logits.data(), .params = &params, .counts = &counts};
    const TokenId token = sample(row, logits.size()).token;
    EXPECT_EQ(token, reference(row, logits.size()).token);
    return token;
  };
  EXPECT_EQ(token_of({3.0F, 3.2F, 1.4F}), 1) << "1.5, 1.6, 1.4";
  EXPECT_EQ(token_of({3.0F, 3.2F, 1.7F}), 2);
  EXPECT_EQ(token_of({-1.0F, -1.2F, -1.9F}), 2) << "-2, -2.4, -1.9";
  EXPECT_EQ(token_of({-1.0F, -1.2F, -2.1F}), 0);
  params.presence_penalty = 0.2F;  // after it, and only of what was generated
  EXPECT_EQ(token_of({3.0F, 3.2F, 1.45F}), 0) << "1.5, 1.4, 1.45";
  params.repetition_penalty = 0.5F;
  params.presence_penalty = 0.0F;
  EXPECT_EQ(token_of({1.0F, 1.1F, 2.1F}), 1) << "2, 2.2, 2.1";
}

TEST_P(SamplingTest, RowsDoNotDependOnEachOther) {
  const std::size_t vocab = 6144;
  const auto all_params = many_params();
  std::vector<std::vector<float>> logits;
  std::vector<SamplingRow> rows;
  for (std::uint32_t i = 0; i < 40; ++i) {
    logits.push_back(random_floats(vocab, 50 + i, 2.0F));
  }
  for (std::uint32_t i = 0; i < 40; ++i) {
    rows.push_back({.logits = logits[i].data(), .params = &all_params[i * 5], .position = i});
  }
  std::vector<SamplingOutput> outputs(rows.size());
  ASSERT_TRUE(launch_sampling(rows, static_cast<std::int64_t>(vocab), outputs, stream()).is_ok());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto alone = sample(rows[i], vocab);
    EXPECT_EQ(outputs[i].token, alone.token);
    EXPECT_EQ(outputs[i].logprob, alone.logprob);
    EXPECT_EQ(outputs[i].top_logprobs, alone.top_logprobs);
  }
}

TEST_P(SamplingTest, ARowOfNumbersThatAreNoneHasNoTokenAndDisturbsNobody) {
  const SamplingParams params = greedy();
  const std::size_t vocab = 1000;
  const std::vector<float> good(vocab, 1.0F);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{501}, vocab - 1}) {
      std::vector<float> broken = good;
      broken[where] = bad;
      const std::vector<SamplingRow> rows = {{.logits = good.data(), .params = &params},
                                             {.logits = broken.data(), .params = &params}};
      std::vector<SamplingOutput> outputs(2);
      outputs[1].token = 5;
      ASSERT_TRUE(launch_sampling(rows, static_cast<std::int64_t>(vocab), outputs, stream()));
      EXPECT_EQ(outputs[0].token, 0);
      EXPECT_EQ(outputs[1].token, kNoToken);
    }
  }
}

TEST_P(SamplingTest, ARowWithEveryTokenBannedHasNone) {
  SamplingParams params = greedy();
  params.stop_token_ids = {0, 1};
  params.min_tokens = 1;
  const std::vector<float> logits = {1.0F, 2.0F};
  const SamplingRow row{.logits = logits.data(), .params = &params};
  SamplingOutput output;
  ASSERT_TRUE(launch_sampling({&row, 1}, 2, {&output, 1}, stream()));
  EXPECT_EQ(output.token, kNoToken);
}

}  // namespace
}  // namespace fastfd::kernels::testing
