#include "attention_server/sequence_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fastfd::attention_server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SequenceTableShape kShape{
    .num_slots = 4, .num_pages = 16, .page_size = 4, .max_model_len = 32, .max_lane_rows = 16};

// A lane plan that opens a slot and prefills its whole prompt.
AttentionLanePlan prefill(SlotId slot, Generation generation, std::vector<TokenId> tokens,
                          std::vector<PageId> pages, LaneId lane = 0) {
  AttentionLanePlan plan;
  plan.lane = lane;
  plan.num_rows = static_cast<std::uint32_t>(tokens.size());
  SlotOpen open;
  open.slot = slot;
  open.generation = generation;
  open.prompt_len = plan.num_rows;
  plan.opens.push_back(open);
  PrefillPiece piece;
  piece.slot = slot;
  piece.generation = generation;
  piece.tokens = std::move(tokens);
  piece.new_pages = std::move(pages);
  piece.samples = true;
  plan.pieces.push_back(piece);
  return plan;
}

AttentionLanePlan decode(std::uint32_t num_rows, LaneId lane = 0) {
  AttentionLanePlan plan;
  plan.lane = lane;
  plan.num_rows = num_rows;
  return plan;
}

class SequenceTableTest : public ::testing::Test {
 protected:
  void sample(TokenId token) {
    for (const auto& row : batch_.samples) {
      table_.set_sampled(row, token);
    }
  }
  SequenceTable table_{kShape};
  LaneBatch batch_;
};

TEST_F(SequenceTableTest, PrefilledSequenceBecomesADecodeRowWithoutBeingListed) {
  ASSERT_TRUE(table_.build(prefill(1, 7, {10, 11, 12}, {5}), batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(10, 11, 12));
  ASSERT_EQ(batch_.samples.size(), 1U);
  EXPECT_EQ(batch_.samples[0].row, 2U);
  EXPECT_EQ(batch_.samples[0].position, 3U);
  sample(99);
  ASSERT_TRUE(table_.build(decode(1), batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(99));
  EXPECT_THAT(batch_.positions, ElementsAre(3));
  EXPECT_EQ(batch_.samples[0].position, 4U);
  EXPECT_EQ(batch_.spans[0].pages[0], 5U);
}

TEST_F(SequenceTableTest, ACopiedPageHoldsTheStartOfTheSlot) {
  AttentionLanePlan plan = prefill(2, 1, {12}, {});
  plan.opens[0].cached_pages = {3};
  plan.opens[0].copy_page = PageCopy{.source = 5, .target = 9, .num_tokens = 3};
  plan.pieces[0].start_position = 7;
  ASSERT_TRUE(table_.build(plan, batch_));
  ASSERT_EQ(batch_.copies.size(), 1U);
  EXPECT_EQ(batch_.copies[0], (PageCopy{5, 9, 3}));
  EXPECT_EQ(batch_.spans[0].start_position, 7U);
  EXPECT_EQ(batch_.spans[0].pages[0], 3U);
  EXPECT_EQ(batch_.spans[0].pages[1], 9U);
  sample(13);
  ASSERT_FALSE(table_.build(decode(1), batch_)) << "the next token needs a page";

  for (const PageCopy bad :
       {PageCopy{16, 9, 3}, PageCopy{5, 16, 3}, PageCopy{5, 9, 0}, PageCopy{5, 9, 4}}) {
    table_.reset();
    plan.opens[0].copy_page = bad;
    EXPECT_THAT(table_.build(plan, batch_).message(), HasSubstr("page"));
  }
  table_.reset();
  ASSERT_TRUE(table_.build(prefill(0, 1, {1}, {0}), batch_));
  EXPECT_TRUE(batch_.copies.empty()) << "nothing is copied twice";
}

TEST_F(SequenceTableTest, WithRecurrentStateEverySlotBeginsEmpty) {
  auto shape = kShape;
  shape.recurrent_state = true;
  SequenceTable table(shape);
  AttentionLanePlan cached = prefill(2, 1, {12}, {5});
  cached.opens[0].cached_pages = {3};
  cached.pieces[0].start_position = 4;
  AttentionLanePlan copied = prefill(2, 1, {12}, {});
  copied.opens[0].copy_page = PageCopy{.source = 3, .target = 4, .num_tokens = 2};
  copied.pieces[0].start_position = 2;
  for (const auto& plan : {cached, copied}) {
    ASSERT_TRUE(SequenceTable(kShape).build(plan, batch_)) << "it is right without such state";
    const Status status = table.build(plan, batch_);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("recurrent state"));
  }
  EXPECT_TRUE(table.build(prefill(2, 1, {10, 11}, {3}), batch_));
}

TEST_F(SequenceTableTest, LanesKeepTheirOwnRows) {
  ASSERT_TRUE(table_.build(prefill(0, 1, {1}, {0}, 0), batch_));
  sample(50);
  ASSERT_TRUE(table_.build(prefill(1, 1, {2}, {1}, 1), batch_));
  sample(60);
  ASSERT_TRUE(table_.build(decode(1, 0), batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(50));
  ASSERT_TRUE(table_.build(decode(1, 1), batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(60));
}

TEST_F(SequenceTableTest, APromptCutOverTwoLanesContinuesWhereTheFirstPieceEnded) {
  auto first = prefill(0, 1, {1, 2, 3}, {4}, 0);
  first.pieces[0].samples = false;
  first.opens[0].prompt_len = 5;
  ASSERT_TRUE(table_.build(first, batch_));
  EXPECT_TRUE(batch_.samples.empty());
  const PageId* pages = batch_.spans[0].pages;

  auto second = prefill(0, 1, {4, 5}, {9}, 1);
  second.opens.clear();
  second.pieces[0].start_position = 3;
  LaneBatch other;
  ASSERT_TRUE(table_.build(second, other));
  EXPECT_THAT(other.positions, ElementsAre(3, 4));
  // The first lane is still in flight: its span must stay valid, and sees the same page table.
  EXPECT_EQ(other.spans[0].pages, pages);
  EXPECT_EQ(pages[1], 9U);
  table_.set_sampled(other.samples[0], 77);
  EXPECT_TRUE(table_.build(decode(0, 0), batch_));  // its home is lane 1
  EXPECT_TRUE(table_.build(decode(1, 1), batch_));
}

TEST_F(SequenceTableTest, LeavingAndReopeningASlotForgetsThePreviousSequence) {
  ASSERT_TRUE(table_.build(prefill(2, 1, {1, 2, 3, 4}, {0}), batch_));
  const SampleRow late = batch_.samples[0];
  auto next = prefill(2, 2, {8}, {3});
  next.leaves = {2};
  ASSERT_TRUE(table_.build(next, batch_));
  EXPECT_EQ(batch_.spans[0].pages[0], 3U);
  sample(5);
  table_.set_sampled(late, 1234);  // of the old generation: ignored
  ASSERT_TRUE(table_.build(decode(1), batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(5));
}

TEST_F(SequenceTableTest, CachedPagesCountAsComputed) {
  auto plan = prefill(0, 1, {20, 21}, {7});
  plan.opens[0].cached_pages = {1, 2};
  plan.opens[0].prompt_len = 10;
  plan.pieces[0].start_position = 8;
  ASSERT_TRUE(table_.build(plan, batch_));
  EXPECT_THAT(batch_.positions, ElementsAre(8, 9));
  EXPECT_EQ(batch_.spans[0].start_position, 8);
  EXPECT_EQ(batch_.spans[0].pages[1], 2U);
}

TEST_F(SequenceTableTest, CompleteRowListReplacesTheLane) {
  ASSERT_TRUE(table_.build(prefill(0, 1, {1}, {0}), batch_));
  sample(40);
  ASSERT_TRUE(table_.build(prefill(1, 1, {2}, {1}, 1), batch_));
  sample(41);
  AttentionLanePlan plan = decode(2);
  plan.rows = {{.slot = 1, .generation = 1, .position = 1, .last_token = kNoToken},
               {.slot = 0, .generation = 1, .position = 1, .last_token = 43}};
  ASSERT_TRUE(table_.build(plan, batch_));
  EXPECT_THAT(batch_.tokens, ElementsAre(41, 43));
}

TEST_F(SequenceTableTest, PenaltyCountsAreRebuiltFromTheTokenList) {
  auto plan = prefill(0, 1, {1, 2}, {0});
  plan.opens[0].sampling.presence_penalty = 1.0F;
  plan.opens[0].output_tokens = {5, 6, 5};
  ASSERT_TRUE(table_.build(plan, batch_));
  sample(6);
  EXPECT_THAT(table_.slot(0).counts,
              ::testing::UnorderedElementsAre(std::pair(5, 2U), std::pair(6, 2U)));
}

TEST_F(SequenceTableTest, TokensOfThePromptAreSeenAndNotCounted) {
  auto plan = prefill(0, 1, {1, 2, 5}, {0});
  plan.opens[0].sampling.repetition_penalty = 1.2F;
  plan.opens[0].prompt_tokens = {1, 2, 5};
  plan.opens[0].output_tokens = {5, 9};
  ASSERT_TRUE(table_.build(plan, batch_));
  sample(9);
  EXPECT_THAT(table_.slot(0).counts,
              ElementsAre(std::pair(1, 0U), std::pair(2, 0U), std::pair(5, 1U), std::pair(9, 2U)));
}

TEST_F(SequenceTableTest, RefusesPlansThatDoNotFit) {
  ASSERT_TRUE(table_.build(prefill(0, 1, {1, 2, 3, 4}, {0}), batch_));
  sample(9);
  const auto fails = [&](const AttentionLanePlan& plan, const char* why) {
    const Status status = SequenceTable(table_).build(plan, batch_);
    EXPECT_FALSE(status.is_ok()) << why;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  fails(decode(1), "no page for position 4");
  auto wrong_count = decode(3);
  wrong_count.pages = {{.slot = 0, .page = 1}};
  fails(wrong_count, "has 1 rows, the plan says 3");
  auto bad_page = decode(1);
  bad_page.pages = {{.slot = 0, .page = 16}};
  fails(bad_page, "page 16 of 16");
  auto stranger = decode(0);
  stranger.leaves = {3};
  fails(stranger, "not in it");
  auto unopened = prefill(3, 1, {1}, {2});
  unopened.opens.clear();
  unopened.num_rows = 2;
  unopened.pages = {{.slot = 0, .page = 1}};
  fails(unopened, "never opened");
  auto stale = prefill(0, 2, {1}, {2});
  stale.opens.clear();
  stale.num_rows = 2;
  stale.pages = {{.slot = 0, .page = 1}};
  fails(stale, "generation");
  auto no_room = prefill(1, 1, {1, 2, 3, 4, 5}, {2});
  no_room.num_rows = 6;
  no_room.pages = {{.slot = 0, .page = 1}};
  fails(no_room, "has 1 pages for 5 tokens");
}

}  // namespace
}  // namespace fastfd::attention_server
