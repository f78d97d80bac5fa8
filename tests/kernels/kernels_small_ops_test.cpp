// Norms, RoPE, router, embedding.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/embedding/op.h"
#include "kernels/layout/hop_times.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"
#include "kernels/router/op.h"
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

TEST(RopeTableTest, HoldsTheAnglesInFloat) {
  const RopeTable table = RopeTable::make(100, 8, 10000.0);
  ASSERT_EQ(table.cos.size(), 400U);
  const float frequency = 1.0F / std::pow(10000.0F, 4.0F / 8.0F);
  EXPECT_EQ(table.cos[4 * 37 + 2], std::cos(37.0F * frequency));
  EXPECT_EQ(table.sin[4 * 37 + 2], std::sin(37.0F * frequency));
  EXPECT_EQ(table.cos[0], 1.0F);
  EXPECT_EQ(table.sin[3], 0.0F);
}

TEST_P(SmallOpsTest, QkNormRopeEqualsTheReference) {
  for (const auto& [head_dim, rotary_dim] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {128, 32}, {20, 6}, {2, 2}}) {
    const std::int64_t rows = 9;
    const std::int64_t q_heads = 3;
    const std::int64_t kv_heads = 2;
    const auto size = static_cast<std::size_t>(rows * (q_heads + 2 * kv_heads) * head_dim);
    const RopeTable table = RopeTable::make(500, rotary_dim, 1e6);
    const auto q_weight = random_floats(static_cast<std::size_t>(head_dim), 6);
    const auto k_weight = random_floats(static_cast<std::size_t>(head_dim), 7);
    const std::vector<std::int32_t> positions = {0, 1, 499, 3, 250, 7, 7, 100, 2};
    for (const bool with_norm : {false, true}) {
      auto actual = random_floats(size, 8);
      auto expected = actual;
      const auto input = actual;
      QkNormRopeParams params{.num_rows = rows,
                              .num_q_heads = q_heads,
                              .num_kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .qkv = actual.data(),
                              .q_norm_weight = with_norm ? q_weight.data() : nullptr,
                              .k_norm_weight = with_norm ? k_weight.data() : nullptr,
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
  const RopeTable table = RopeTable::make(10, 4, 10000.0);
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

Routed route(const std::vector<float>& logits, std::int64_t num_experts, std::int64_t top_k,
             bool renormalize, const device::CpuStream* stream) {
  const auto rows = static_cast<std::int64_t>(logits.size()) / num_experts;
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(rows * top_k), -1),
                std::vector<float>(static_cast<std::size_t>(rows * top_k))};
  const RouterParams params{.num_rows = rows,
                            .num_experts = num_experts,
                            .top_k = top_k,
                            .logits = logits.data(),
                            .renormalize = renormalize,
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
      for (const bool renormalize : {false, true}) {
        const auto actual = route(logits, num_experts, top_k, renormalize, &stream());
        const auto expected = route(logits, num_experts, top_k, renormalize, nullptr);
        EXPECT_EQ(actual.experts, expected.experts);
        expect_near(actual.weights, expected.weights, 1e-6F, "weights");
      }
    }
  }
}

TEST_P(SmallOpsTest, RouterTiesGoToTheLowerId) {
  std::vector<float> logits(20, 1.0F);
  EXPECT_EQ(route(logits, 20, 4, true, &stream()).experts, (std::vector<std::int32_t>{0, 1, 2, 3}));
  logits[7] = 2.0F;
  logits[19] = 2.0F;
  logits[11] = 3.0F;
  EXPECT_EQ(route(logits, 20, 5, true, &stream()).experts,
            (std::vector<std::int32_t>{11, 7, 19, 0, 1}));
  EXPECT_EQ(route(logits, 20, 2, true, &stream()).experts, (std::vector<std::int32_t>{11, 7}));
}

TEST_P(SmallOpsTest, RouterNeverNamesAnExpertThatIsNotThere) {
  std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
  for (const std::int32_t expert : route(logits, 8, 3, true, &stream()).experts) {
    EXPECT_GE(expert, 0);
    EXPECT_LT(expert, 8);
  }
}

TEST_P(SmallOpsTest, RouterRefusesAnImpossibleTopK) {
  for (const std::int64_t top_k : {0, 5}) {
    const RouterParams params{.num_rows = 0, .num_experts = 4, .top_k = top_k};
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
