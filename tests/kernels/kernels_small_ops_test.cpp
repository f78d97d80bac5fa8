// Norms, RoPE, router, embedding.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/embedding/op.h"
#include "kernels/layout/hop_times.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"
#include "kernels/router/op.h"
#include "kernels/sigmoid_gate/op.h"
#include "kernels/wait/work_clock.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class SmallOpsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, SmallOpsTest, ::testing::ValuesIn(backends()), backend_name);

TEST_P(SmallOpsTest, RmsNormEqualsTheReferenceAndRowsAreIndependent) {
  for (const std::int64_t dim : {1, 3, 16, 37, 64, 256, 1000}) {
    for (const std::int64_t rows : {0, 1, 5, 700}) {
      const auto x = random_floats(static_cast<std::size_t>(rows * dim), 1, 3.0F);
      const auto weight = random_floats(static_cast<std::size_t>(dim), 2);
      std::vector<float> actual = x;  // in place
      std::vector<float> expected(x.size());
      ASSERT_TRUE(launch_rms_norm({.num_rows = rows,
                                   .dim = dim,
                                   .x = actual.data(),
                                   .weight = weight.data(),
                                   .y = actual.data()},
                                  stream())
                      .is_ok());
      reference_rms_norm({.num_rows = rows,
                          .dim = dim,
                          .x = x.data(),
                          .weight = weight.data(),
                          .y = expected.data()});
      expect_near(actual, expected, 1e-5F, "dim " + std::to_string(dim));
      if (rows > 1) {
        std::vector<float> last(static_cast<std::size_t>(dim));
        ASSERT_TRUE(launch_rms_norm({.num_rows = 1,
                                     .dim = dim,
                                     .x = x.data() + (rows - 1) * dim,
                                     .weight = weight.data(),
                                     .y = last.data()},
                                    stream())
                        .is_ok());
        EXPECT_TRUE(same_bits(last.data(), actual.data() + (rows - 1) * dim, last.size()));
      }
    }
  }
}

TEST_P(SmallOpsTest, CombineAddsTheRanksThatAnswered) {
  for (const std::int64_t dim : {1, 33, 256}) {
    const std::int64_t rows = 6;
    const std::int64_t ranks = 3;
    const auto size = static_cast<std::size_t>(rows * dim);
    const auto values = random_floats(size * ranks, 3);
    const auto rounded = to_bf16(values);
    const auto weight = random_floats(static_cast<std::size_t>(dim), 4);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<const void*> partials;
      for (std::int64_t i = 0; i < ranks * rows; ++i) {
        const bool absent = i % 4 == 1 || i % rows == 5;  // row 5 has no rank at all
        const void* row = dtype == DType::kFloat32
                              ? static_cast<const void*>(values.data() + i * dim)
                              : static_cast<const void*>(rounded.data() + i * dim);
        partials.push_back(absent ? nullptr : row);
      }
      auto actual = random_floats(size, 5);
      auto expected = actual;
      std::vector<float> actual_y(size);
      std::vector<float> expected_y(size);
      CombineNormParams params{.num_rows = rows,
                               .dim = dim,
                               .residual = actual.data(),
                               .num_ranks = ranks,
                               .partials = partials.data(),
                               .partial_dtype = dtype,
                               .weight = weight.data(),
                               .y = actual_y.data()};
      ASSERT_TRUE(launch_combine_norm(params, stream()).is_ok());
      params.residual = expected.data();
      params.y = expected_y.data();
      reference_combine_norm(params);
      EXPECT_EQ(actual, expected);  // additions in the same order
      expect_near(actual_y, expected_y, 1e-5F, "norm");
      params.residual = actual.data();
      params.weight = nullptr;
      params.y = nullptr;
      ASSERT_TRUE(launch_combine_norm(params, stream()).is_ok());
      params.residual = expected.data();
      reference_combine_norm(params);
      EXPECT_EQ(actual, expected);
    }
  }
}

TEST_P(SmallOpsTest, CombineRefusesOtherFormats) {
  EXPECT_EQ(launch_combine_norm({.num_rows = 1,
                                 .dim = 1,
                                 .residual = nullptr,
                                 .num_ranks = 0,
                                 .partials = nullptr,
                                 .partial_dtype = DType::kFloat16,
                                 .weight = nullptr,
                                 .y = nullptr},
                                stream())
                .code(),
            StatusCode::kInvalidArgument);
}

TEST_P(SmallOpsTest, SigmoidGateEqualsTheReference) {
  for (const std::int64_t dim : {1, 21, 64, 4096}) {
    const std::int64_t rows = 9;
    const auto gate = random_floats(static_cast<std::size_t>(rows * dim), 6, 4.0F);
    auto actual = random_floats(gate.size(), 7);
    auto expected = actual;
    SigmoidGateParams params{.num_rows = rows, .dim = dim, .gate = gate.data(), .y = actual.data()};
    ASSERT_TRUE(launch_sigmoid_gate(params, stream()).is_ok());
    params.y = expected.data();
    reference_sigmoid_gate(params);
    expect_near(actual, expected, 1e-6F, "dim " + std::to_string(dim));
  }
  EXPECT_EQ(launch_sigmoid_gate({.num_rows = 1, .dim = 0}, stream()).code(),
            StatusCode::kInvalidArgument);
}

TEST(RopeTableTest, HoldsTheAnglesInFloat) {
  const RopeTable table = RopeTable::make(100, {.rotary_dim = 8});
  ASSERT_EQ(table.cos.size(), 400U);
  const float frequency = 1.0F / std::pow(10000.0F, 4.0F / 8.0F);
  EXPECT_EQ(table.cos[4 * 37 + 2], std::cos(37.0F * frequency));
  EXPECT_EQ(table.sin[4 * 37 + 2], std::sin(37.0F * frequency));
  EXPECT_EQ(table.cos[0], 1.0F);
  EXPECT_EQ(table.sin[3], 0.0F);
}

// Expected values: _compute_*_parameters of transformers 5.24 (modeling_rope_utils.py).
TEST(RopeTableTest, ScalesFrequenciesAsTransformersDoes) {
  RopeParams linear{.rotary_dim = 16, .scaling = RopeScaling::kLinear, .factor = 4.0};
  RopeParams yarn{.rotary_dim = 16,
                  .scaling = RopeScaling::kYarn,
                  .factor = 4.0,
                  .original_max_positions = 256.0,
                  .attention_factor = 1.138629436111989};
  RopeParams soft_yarn = yarn;
  soft_yarn.truncate = false;
  soft_yarn.beta_fast = 16.0;
  soft_yarn.beta_slow = 2.0;
  RopeParams llama3{.rotary_dim = 16,
                    .scaling = RopeScaling::kLlama3,
                    .factor = 8.0,
                    .original_max_positions = 256.0};
  const struct {
    RopeParams params;
    std::vector<float> frequencies;
  } kCases[] = {
      {linear,
       {0.25F, 0.079056941F, 0.0250000004F, 0.00790569466F, 0.00249999994F, 0.000790569466F,
        0.000250000012F, 7.90569466e-05F}},
      {yarn,
       {1.0F, 0.25693506F, 0.0625F, 0.0138349654F, 0.00249999994F, 0.000790569466F, 0.000250000012F,
        7.90569466e-05F}},
      {soft_yarn,
       {1.0F, 0.291525632F, 0.0506643951F, 0.00790569466F, 0.00249999994F, 0.000790569466F,
        0.000250000012F, 7.90569466e-05F}},
      {llama3,
       {1.0F, 0.316227764F, 0.100000001F, 0.00661310693F, 0.00124999997F, 0.000395284733F,
        0.000125000006F, 3.95284733e-05F}},
  };
  for (const auto& [params, frequencies] : kCases) {
    const RopeTable table = RopeTable::make(2, params);
    const auto magnitude = static_cast<float>(params.attention_factor);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(table.cos[i], magnitude);
      EXPECT_NEAR(table.sin[8 + i], std::sin(frequencies[i]) * magnitude, 1e-6F * frequencies[i]);
    }
  }
}

TEST_P(SmallOpsTest, QkNormRopeEqualsTheReference) {
  for (const auto& [head_dim, rotary_dim] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {128, 32}, {20, 6}, {2, 2}}) {
    const std::int64_t rows = 9;
    const std::int64_t q_heads = 3;
    const std::int64_t kv_heads = 2;
    const auto size = static_cast<std::size_t>(rows * (q_heads + 2 * kv_heads) * head_dim);
    const RopeTable table = RopeTable::make(500, {.rotary_dim = rotary_dim, .theta = 1e6});
    const auto q_weight = random_floats(static_cast<std::size_t>(q_heads * head_dim), 6);
    const auto k_weight = random_floats(static_cast<std::size_t>(kv_heads * head_dim), 7);
    const std::vector<std::int32_t> positions = {0, 1, 499, 3, 250, 7, 7, 100, 2};
    for (const QkNorm norm : {QkNorm::kNone, QkNorm::kPerHead, QkNorm::kWhole}) {
      auto actual = random_floats(size, 8);
      auto expected = actual;
      const auto input = actual;
      QkNormRopeParams params{.num_rows = rows,
                              .num_q_heads = q_heads,
                              .num_kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .qkv = actual.data(),
                              .norm = norm,
                              .q_norm_weight = q_weight.data(),
                              .k_norm_weight = k_weight.data(),
                              .positions = positions.data(),
                              .table = &table};
      ASSERT_TRUE(launch_qk_norm_rope(params, stream()).is_ok());
      params.qkv = expected.data();
      reference_qk_norm_rope(params);
      expect_near(actual, expected, 1e-5F, "head_dim " + std::to_string(head_dim));
      // Values are not touched.
      const auto values = static_cast<std::size_t>((q_heads + kv_heads) * head_dim);
      EXPECT_TRUE(same_bits(actual.data() + values, input.data() + values,
                            static_cast<std::size_t>(kv_heads * head_dim)));
    }
  }
}

TEST_P(SmallOpsTest, RopeRefusesPositionsOutsideTheTable) {
  const RopeTable table = RopeTable::make(10, {.rotary_dim = 4});
  std::vector<float> qkv(3 * 4);
  for (const std::int32_t position : {-1, 10}) {
    const QkNormRopeParams params{.num_rows = 1,
                                  .num_q_heads = 1,
                                  .num_kv_heads = 1,
                                  .head_dim = 4,
                                  .qkv = qkv.data(),
                                  .positions = &position,
                                  .table = &table};
    EXPECT_EQ(launch_qk_norm_rope(params, stream()).code(), StatusCode::kInvalidArgument);
  }
}

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

struct RouteCase {
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;
  RouterRule rule{};
  std::vector<float> correction_bias{};  // or none
};

/// By the reference without a stream.
Routed route(const std::vector<float>& logits, const RouteCase& c,
             const device::CpuStream* stream) {
  const auto rows = static_cast<std::int64_t>(logits.size()) / c.num_experts;
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(rows * c.top_k), -1),
                std::vector<float>(static_cast<std::size_t>(rows * c.top_k))};
  const RouterParams params{
      .num_rows = rows,
      .num_experts = c.num_experts,
      .top_k = c.top_k,
      .logits = logits.data(),
      .correction_bias = c.correction_bias.empty() ? nullptr : c.correction_bias.data(),
      .rule = c.rule,
      .experts = routed.experts.data(),
      .weights = routed.weights.data()};
  if (stream == nullptr) {
    reference_router(params);
  } else {
    EXPECT_TRUE(launch_router(params, *stream).is_ok());
  }
  return routed;
}

TEST_P(SmallOpsTest, RouterEqualsTheReference) {
  for (const auto& [num_experts, top_k] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 4}, {17, 17}, {128, 8}, {256, 1}}) {
    for (const std::int64_t rows : {0, 1, 33}) {
      const auto logits = random_floats(static_cast<std::size_t>(rows * num_experts), 9, 2.0F);
      for (const RouterScoring scoring : {RouterScoring::kSoftmax, RouterScoring::kSigmoid}) {
        for (const bool renormalize : {false, true}) {
          RouteCase c{.num_experts = num_experts, .top_k = top_k};
          c.rule = {.scoring = scoring, .renormalize = renormalize, .scaling_factor = 2.5F};
          if (scoring == RouterScoring::kSigmoid) {
            c.correction_bias = random_floats(static_cast<std::size_t>(num_experts), 10, 0.5F);
          }
          const auto actual = route(logits, c, &stream());
          const auto expected = route(logits, c, nullptr);
          EXPECT_EQ(actual.experts, expected.experts);
          expect_near(actual.weights, expected.weights, 1e-6F, "weights");
        }
      }
    }
  }
}

TEST_P(SmallOpsTest, RouterLimitsItsChoiceToGroups) {
  const auto logits = random_floats(std::size_t{50} * 32, 11, 2.0F);
  for (const GroupScore score : {GroupScore::kMax, GroupScore::kTopTwoSum}) {
    for (const bool biased : {false, true}) {
      RouteCase c{.num_experts = 32, .top_k = 6};
      c.rule = {.scoring = RouterScoring::kSigmoid,
                .num_groups = 8,
                .top_groups = 3,
                .group_score = score};
      if (biased) {
        c.correction_bias = random_floats(32, 12, 0.5F);
      }
      const auto actual = route(logits, c, &stream());
      const auto expected = route(logits, c, nullptr);
      EXPECT_EQ(actual.experts, expected.experts);
      expect_near(actual.weights, expected.weights, 1e-6F, "weights");
      for (std::size_t row = 0; row < 50; ++row) {
        std::set<std::int32_t> groups;
        for (std::size_t i = 0; i < 6; ++i) {
          groups.insert(actual.experts[row * 6 + i] / 4);
        }
        EXPECT_LE(groups.size(), 3U);
      }
    }
  }
}

TEST_P(SmallOpsTest, RouterFormsOfGroupScoreChooseDifferently) {
  // One outstanding expert in group 0, two good ones in group 1.
  const std::vector<float> logits = {3.0F, -9.0F, 2.0F, 2.0F};
  RouteCase c{.num_experts = 4, .top_k = 1};
  c.rule = {.scoring = RouterScoring::kSigmoid, .num_groups = 2, .top_groups = 1};
  EXPECT_EQ(route(logits, c, &stream()).experts, (std::vector<std::int32_t>{0}));
  c.rule.group_score = GroupScore::kTopTwoSum;
  EXPECT_EQ(route(logits, c, &stream()).experts, (std::vector<std::int32_t>{2}));
}

TEST_P(SmallOpsTest, RouterBiasChoosesAndDoesNotWeigh) {
  RouteCase c{.num_experts = 3, .top_k = 2, .correction_bias = {0.0F, 0.0F, 5.0F}};
  c.rule = {.scoring = RouterScoring::kSigmoid, .renormalize = false, .scaling_factor = 2.0F};
  const auto routed = route({1.0F, 0.5F, 0.0F}, c, &stream());
  EXPECT_EQ(routed.experts, (std::vector<std::int32_t>{2, 0}));
  expect_near(routed.weights, {1.0F, 2.0F / (1.0F + std::exp(-1.0F))}, 1e-6F, "weights");
}

TEST_P(SmallOpsTest, RouterTiesGoToTheLowerId) {
  std::vector<float> logits(20, 1.0F);
  EXPECT_EQ(route(logits, {.num_experts = 20, .top_k = 4}, &stream()).experts,
            (std::vector<std::int32_t>{0, 1, 2, 3}));
  logits[7] = 2.0F;
  logits[19] = 2.0F;
  logits[11] = 3.0F;
  EXPECT_EQ(route(logits, {.num_experts = 20, .top_k = 5}, &stream()).experts,
            (std::vector<std::int32_t>{11, 7, 19, 0, 1}));
  EXPECT_EQ(route(logits, {.num_experts = 20, .top_k = 2}, &stream()).experts,
            (std::vector<std::int32_t>{11, 7}));
}

TEST_P(SmallOpsTest, RouterNeverNamesAnExpertThatIsNotThere) {
  std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
  for (const std::int32_t expert :
       route(logits, {.num_experts = 8, .top_k = 3}, &stream()).experts) {
    EXPECT_GE(expert, 0);
    EXPECT_LT(expert, 8);
  }
}

TEST_P(SmallOpsTest, RouterRefusesGroupsThatDontFit) {
  RouterParams params{.num_rows = 0, .num_experts = 8, .top_k = 3, .rule = {}};
  for (const auto& [num_groups, top_groups] : {std::pair{3U, 1U}, {4U, 5U}, {4U, 0U}, {4U, 1U}}) {
    params.rule = {.num_groups = num_groups, .top_groups = top_groups};
    EXPECT_EQ(launch_router(params, stream()).code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(SmallOpsTest, RouterRefusesAnImpossibleTopK) {
  for (const std::int64_t top_k : {0, 5}) {
    const RouterParams params{.num_rows = 0, .num_experts = 4, .top_k = top_k, .rule = {}};
    EXPECT_EQ(launch_router(params, stream()).code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(SmallOpsTest, EmbeddingCopiesRowsAndRefusesUnknownTokens) {
  for (const std::int64_t dim : {1, 31, 64}) {
    const auto table = random_bf16(static_cast<std::size_t>(10 * dim), 10);
    std::vector<TokenId> tokens = {9, 0, 3, 3};
    std::vector<float> out(static_cast<std::size_t>(4 * dim));
    const EmbeddingParams params{.num_rows = 4,
                                 .dim = dim,
                                 .vocab_size = 10,
                                 .tokens = tokens.data(),
                                 .table = table.data(),
                                 .out = out.data()};
    ASSERT_TRUE(launch_embedding(params, stream()).is_ok());
    std::vector<float> expected(out.size());
    EmbeddingParams reference = params;
    reference.out = expected.data();
    reference_embedding(reference);
    EXPECT_EQ(out, expected);
    EXPECT_EQ(out[static_cast<std::size_t>(dim)], table[0].to_float());
    for (const TokenId bad : {-1, 10}) {
      tokens[2] = bad;
      EXPECT_EQ(launch_embedding(params, stream()).code(), StatusCode::kInvalidArgument);
    }
  }
}

TEST_P(SmallOpsTest, EmbeddingReadsThePackedHeadOfATiedModel) {
  for (const std::int64_t dim : {1, 31, 64}) {
    const auto table = random_bf16(static_cast<std::size_t>(130 * dim), 11);
    PackedWeights packed(130, dim);  // three panels, the last one in part
    packed.pack_rows(0, 130, table.data());
    const std::vector<TokenId> tokens = {129, 0, 63, 64, 64};
    std::vector<float> out(tokens.size() * static_cast<std::size_t>(dim));
    std::vector<float> expected(out.size());
    EmbeddingParams params{.num_rows = static_cast<std::int64_t>(tokens.size()),
                           .dim = dim,
                           .vocab_size = 130,
                           .tokens = tokens.data(),
                           .table = table.data(),
                           .out = expected.data()};
    reference_embedding(params);
    params.table = nullptr;
    params.packed_table = &packed;
    params.out = out.data();
    ASSERT_TRUE(launch_embedding(params, stream()).is_ok());
    EXPECT_EQ(out, expected);
    std::fill(out.begin(), out.end(), 0.0F);
    reference_embedding(params);
    EXPECT_EQ(out, expected);
  }
}

TEST(WorkClock, StandsStillOnlyWhileEveryLaneWaits) {
  kernels::WorkClock clock;
  // Lane 0: 10..20 and 30..40 waiting. Lane 1 works 15..35, between waits of its own.
  const std::vector<layout::HopTimes> lane0 = {{10, 20}, {30, 40}};
  clock.add(lane0, {0, 50});
  EXPECT_EQ(clock.busy_ns(), 30U);
  EXPECT_EQ(clock.waiting_ns(), 20U);
  const std::vector<layout::HopTimes> lane1 = {{0, 15}, {35, 50}};
  clock.add(lane1, {0, 50});
  EXPECT_EQ(clock.busy_ns(), 40U);  // all but 10..15 and 35..40
  EXPECT_EQ(clock.waiting_ns(), 10U);
  clock.add(lane0, {1000, 1050});  // nothing was planned in between
  EXPECT_EQ(clock.busy_ns() + clock.waiting_ns(), 100U);
}

TEST(HopProgress, SurvivesItsWord) {
  const layout::HopProgress progress{123'456'789'012, 93, true};
  const auto back = layout::HopProgress::unpack(progress.pack());
  EXPECT_EQ(back.step, progress.step);
  EXPECT_EQ(back.layer, progress.layer);
  EXPECT_TRUE(back.waiting);
}

}  // namespace
}  // namespace fastfd::kernels::testing
