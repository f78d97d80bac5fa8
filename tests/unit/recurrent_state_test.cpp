#include "attention_server/recurrent_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fastfd::attention_server {
namespace {

using ::testing::HasSubstr;

constexpr kernels::GatedDeltaNetShape kShape{
    .num_k_heads = 1, .num_v_heads = 2, .k_head_dim = 4, .v_head_dim = 8};
constexpr std::uint32_t kLayers = 2;
constexpr std::uint32_t kSlots = 3;

struct Rows {
  SlotId slot;
  std::int64_t start_position;
  std::int64_t num_rows;
};

LaneBatch batch_of(const std::vector<Rows>& all) {
  LaneBatch batch;
  for (const Rows& rows : all) {
    batch.spans.push_back({.first_row = batch.num_rows,
                           .num_rows = rows.num_rows,
                           .start_position = rows.start_position});
    batch.span_slots.push_back(rows.slot);
    batch.num_rows += static_cast<std::uint32_t>(rows.num_rows);
  }
  return batch;
}

class RecurrentStateTest : public ::testing::Test {
 protected:
  /// What a server does with a batch in all layers.
  Status run(const LaneBatch& batch) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (auto status = states_.take(layer, batch, spans_); !status) {
        return status;
      }
      states_.advance(layer, batch);
    }
    return Status::ok();
  }

  RecurrentState states_{kLayers, kSlots, kShape};
  std::vector<kernels::GatedDeltaNetSpan> spans_;
};

TEST_F(RecurrentStateTest, EverySlotAndLayerHasStatesOfItsOwn) {
  const LaneBatch batch = batch_of({{2, 0, 3}, {0, 0, 1}});
  std::vector<std::pair<float*, std::int64_t>> parts;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(states_.take(layer, batch, spans_));
    ASSERT_EQ(spans_.size(), 2U);
    EXPECT_EQ(spans_[1].first_row, 3);
    EXPECT_EQ(spans_[1].num_rows, 1);
    for (const auto& span : spans_) {
      EXPECT_TRUE(span.begins);
      parts.emplace_back(span.conv_state, kShape.conv_state_floats());
      parts.emplace_back(span.recurrent_state, kShape.recurrent_state_floats());
    }
  }
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    EXPECT_LE(parts[i - 1].first + parts[i - 1].second, parts[i].first);
  }
  const std::int64_t state_floats = 3 * 24 + 2 * 4 * 32;
  EXPECT_EQ(kShape.state_floats(), state_floats);
  EXPECT_LE(parts.back().first + parts.back().second - parts.front().first,
            kLayers * kSlots * state_floats);
}

TEST_F(RecurrentStateTest, GoesOnFromTheStateOfTheTokenBefore) {
  ASSERT_TRUE(run(batch_of({{1, 0, 5}})));
  ASSERT_TRUE(states_.take(0, batch_of({{1, 5, 2}}), spans_));
  EXPECT_FALSE(spans_[0].begins);
}

// FAULTS 29: after an abandoned step the state is one token ahead of what was committed.
TEST_F(RecurrentStateTest, ARetriedTokenIsRefused) {
  ASSERT_TRUE(run(batch_of({{1, 0, 5}})));
  ASSERT_TRUE(run(batch_of({{1, 5, 1}})));
  const Status status = run(batch_of({{1, 5, 1}}));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("slot 1 is at position 6, a step would go on at 5"));
}

TEST_F(RecurrentStateTest, AnotherEpochOrALaunchThatEndedInTheMiddleLeavesNothingToGoOnFrom) {
  ASSERT_TRUE(run(batch_of({{1, 0, 5}})));
  states_.reset();
  EXPECT_THAT(run(batch_of({{1, 5, 1}})).message(), HasSubstr("slot 1 holds nothing"));
  ASSERT_TRUE(run(batch_of({{1, 0, 5}}))) << "computed again from its start";
  ASSERT_TRUE(states_.take(1, batch_of({{1, 5, 1}}), spans_)) << "and its launch fails";
  EXPECT_EQ(states_.take(1, batch_of({{1, 5, 1}}), spans_).code(), StatusCode::kInternal);
  EXPECT_EQ(states_.take(1, batch_of({{1, 6, 1}}), spans_).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace fastfd::attention_server
