#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/layout/flag.h"
#include "kernels/layout/row.h"
#include "kernels/layout/window.h"

namespace fastfd::layout {
namespace {

constexpr WindowDims kOddDims{/*max_rows=*/13, /*row_bytes=*/70, /*max_routes_per_row=*/3};

struct Range {
  std::size_t begin;
  std::size_t end;
};

/// Sorted, inside the window, none touching the next.
void expect_disjoint(std::vector<Range> ranges, std::size_t window_bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_LT(ranges[i].begin, ranges[i].end);
    EXPECT_LE(ranges[i].end, i + 1 < ranges.size() ? ranges[i + 1].begin : window_bytes);
  }
}

template <typename T>
Range range_of(const std::byte* window, const T* area, std::size_t count) {
  const auto begin = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(area) - window);
  EXPECT_EQ(begin % kPayloadAlignment, 0U);
  return {begin, begin + count * sizeof(T)};
}

class WindowLayout : public testing::TestWithParam<WindowDims> {};

TEST_P(WindowLayout, DispatchAreasAreAlignedAndDisjoint) {
  const WindowDims dims = GetParam();
  const DispatchLayout layout = DispatchLayout::make(dims);
  std::vector<std::byte> memory(layout.bytes() + kPayloadAlignment);
  auto* window =
      reinterpret_cast<std::byte*>(align_payload(reinterpret_cast<std::uintptr_t>(memory.data())));
  std::vector<Range> ranges;
  for (std::uint32_t lane = 0; lane < kMaxLanes; ++lane) {
    for (std::uint32_t buffer = 0; buffer < kBuffersPerLane; ++buffer) {
      const DispatchSlot slot = layout.slot(window, lane, buffer);
      const std::size_t max_routes = std::size_t{dims.max_rows} * dims.max_routes_per_row;
      // The flag owns its whole line.
      ranges.push_back(range_of(window, reinterpret_cast<const FlagLine*>(slot.flag), 1));
      ranges.push_back(range_of(window, slot.header, 1));
      ranges.push_back(range_of(window, slot.rows, std::size_t{dims.max_rows} * dims.row_bytes));
      ranges.push_back(range_of(window, slot.route_offsets, dims.max_rows + 1));
      ranges.push_back(range_of(window, slot.route_experts, max_routes));
      ranges.push_back(range_of(window, slot.route_weights, max_routes));
    }
  }
  expect_disjoint(ranges, layout.bytes());
}

TEST_P(WindowLayout, CombineAreasAreAlignedAndDisjoint) {
  const WindowDims dims = GetParam();
  const CombineLayout layout = CombineLayout::make(dims);
  std::vector<std::byte> memory(layout.bytes() + kPayloadAlignment);
  auto* window =
      reinterpret_cast<std::byte*>(align_payload(reinterpret_cast<std::uintptr_t>(memory.data())));
  std::vector<Range> ranges;
  for (std::uint32_t lane = 0; lane < kMaxLanes; ++lane) {
    for (std::uint32_t buffer = 0; buffer < kBuffersPerLane; ++buffer) {
      const CombineSlot slot = layout.slot(window, lane, buffer);
      ranges.push_back(range_of(window, reinterpret_cast<const FlagLine*>(slot.flag), 1));
      ranges.push_back(range_of(window, slot.header, 1));
      ranges.push_back(range_of(window, slot.rows, std::size_t{dims.max_rows} * dims.row_bytes));
    }
  }
  expect_disjoint(ranges, layout.bytes());
}

INSTANTIATE_TEST_SUITE_P(Dims, WindowLayout,
                         testing::Values(WindowDims{1, 2, 1}, kOddDims, WindowDims{64, 512, 8},
                                         WindowDims{256, 8192, 4}));

TEST(WindowLayoutSize, WasteIsBelowOneLineAnArea) {
  const DispatchLayout layout = DispatchLayout::make(kOddDims);
  const std::size_t payload = 13 * 70 + 14 * 4 + 2 * (13 * 3 * 4);
  constexpr std::size_t kAreas = 4;
  EXPECT_LT(layout.grid.slot_bytes,
            SlotGrid::payload_offset() + payload + kAreas * kPayloadAlignment);
}

TEST(WindowLayoutSize, LargeWindowsDoNotOverflow) {
  const DispatchLayout layout = DispatchLayout::make({1U << 20, 1U << 16, 8});
  EXPECT_GT(layout.bytes(), (std::size_t{1} << 36) * kMaxLanes * kBuffersPerLane);
}

TEST(RowLayout, UnscaledRowsAreTheirValues) {
  for (const std::uint32_t hidden_dim : {8U, 72U, 2880U}) {
    EXPECT_EQ((RowLayout{hidden_dim, DType::kFloat32}.row_bytes()), hidden_dim * 4);
    EXPECT_EQ((RowLayout{hidden_dim, DType::kBFloat16}.row_bytes()), hidden_dim * 2);
    EXPECT_EQ((RowLayout{hidden_dim, DType::kBFloat16}.row_bytes() % 16), 0U);
    EXPECT_EQ((RowLayout{hidden_dim, DType::kBFloat16}.num_scales()), 0U);
  }
}

TEST(RowLayout, ScalesLieBehindTheValuesAndRowsKeepAlignment) {
  for (const std::uint32_t hidden_dim : {128U, 384U, 2048U, 3072U, 7168U}) {
    const RowLayout layout{hidden_dim, DType::kFloat8E4M3};
    EXPECT_EQ(layout.num_scales() * kScaleGroup, hidden_dim);
    EXPECT_EQ(layout.scales_offset(), hidden_dim);
    EXPECT_EQ(layout.scales_offset() % alignof(float), 0U);
    EXPECT_EQ(layout.row_bytes() % kPayloadAlignment, 0U);
    EXPECT_GE(layout.row_bytes(), layout.scales_offset() + layout.num_scales() * sizeof(float));
    EXPECT_LT(layout.row_bytes(),
              layout.scales_offset() + layout.num_scales() * sizeof(float) + kPayloadAlignment);
    std::vector<std::byte> rows(3 * std::size_t{layout.row_bytes()});
    std::byte* second = layout.row(rows.data(), 1);
    EXPECT_EQ(second - rows.data(), static_cast<std::ptrdiff_t>(layout.row_bytes()));
    EXPECT_EQ(reinterpret_cast<std::byte*>(layout.scales(second)) - second,
              static_cast<std::ptrdiff_t>(hidden_dim));
  }
}

TEST(Flag, CarriesEpochAndSequence) {
  const std::uint64_t flag = pack_flag(7, hop_sequence(/*step=*/5, /*num_layers=*/30, /*layer=*/2));
  EXPECT_EQ(flag_epoch(flag), 7U);
  EXPECT_EQ(flag_sequence(flag), 5U * 30 + 2 + 1);
}

TEST(Flag, NoHopPacksToTheInitialValue) { EXPECT_NE(pack_flag(0, hop_sequence(0, 1, 0)), kNoFlag); }

TEST(Flag, GrowsOverLayersStepsAndEpochs) {
  std::uint64_t last = kNoFlag;
  for (std::uint32_t epoch = 1; epoch < 4; ++epoch) {
    for (std::uint64_t step = 1; step < 4; ++step) {
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        const std::uint64_t next = pack_flag(epoch, hop_sequence(step, 3, layer));
        EXPECT_TRUE(flag_advances(last, next));
        EXPECT_FALSE(flag_advances(next, last) && last != kNoFlag);
        EXPECT_FALSE(flag_advances(next, next));
        last = next;
      }
    }
  }
}

TEST(Flag, EpochsGoRoundAt16Bits) {
  const std::uint64_t before = pack_flag(65535, 1000);
  const std::uint64_t after = pack_flag(65536, 3);
  EXPECT_EQ(flag_epoch(after), 0U);
  EXPECT_TRUE(flag_advances(before, after));
  EXPECT_FALSE(flag_advances(after, before));
}

TEST(Flag, AnyEpochMayBeTheFirstOfAWindow) {
  EXPECT_TRUE(flag_advances(kNoFlag, pack_flag(40000, 1)));
}

}  // namespace
}  // namespace fastfd::layout
