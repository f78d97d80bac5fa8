#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/cuda_build.h"
#include "fastfd/device/cache_fetch.h"
#include "fastfd/device/cuda.h"
#include "fastfd/device/memory_budget.h"
#include "fastfd/device/sm_partition.h"

namespace fastfd::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaAvailability, SaysWhatIsMissingAndWhatToDo) {
  const Status status = cuda_availability();
  if (status) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("use device: cpu"));
  EXPECT_THAT(error_of([] { CudaDevice::open(0); }),
              AllOf(HasSubstr("cuda:0: "), HasSubstr(status.message())));
}

TEST(CudaBuild, SetsTheDriversEnvironmentWhateverItWas) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  set_cuda_environment();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(CudaBuild, ArchitecturesRunOnWhatCmakeMeans) {
  EXPECT_TRUE(architectures_run_on("90a-real", 9, 0));
  EXPECT_FALSE(architectures_run_on("90a-real", 10, 0));
  EXPECT_FALSE(architectures_run_on("90a-real", 8, 9));
  EXPECT_TRUE(architectures_run_on("80-real;90a-real", 8, 6));
  EXPECT_FALSE(architectures_run_on("80-real", 9, 0));
  EXPECT_FALSE(architectures_run_on("86-real", 8, 0));
  EXPECT_TRUE(architectures_run_on("80", 12, 0)) << "as PTX";
  EXPECT_TRUE(architectures_run_on("90-virtual", 10, 0));
  EXPECT_TRUE(architectures_run_on("native", 9, 0));
  EXPECT_FALSE(architectures_run_on("", 9, 0));
}

// An H200: 132 SMs, of which groups of 8 make up 128.
constexpr SmGroups kH200{.group_sms = 8, .num_groups = 16, .remainder_sms = 4};

std::vector<std::uint32_t> split(const std::vector<double>& shares) {
  std::vector<std::uint32_t> num_sms;
  for (const auto& range : plan_sm_split(kH200, shares)) {
    num_sms.push_back(range.num_sms(kH200));
  }
  return num_sms;
}

TEST(SmSplit, RoundsBordersToGroupsAndGivesTheRemainderToTheLast) {
  using Sms = std::vector<std::uint32_t>;
  EXPECT_EQ(split({1.0}), Sms{132});
  EXPECT_EQ(split({0.5, 0.5}), (Sms{64, 68}));
  EXPECT_EQ(split({0.25, 0.25, 0.5}), (Sms{32, 32, 68}));
  EXPECT_EQ(split({0.1, 0.2}), (Sms{16, 24}));
  EXPECT_EQ(split({1.0 / 3, 1.0 / 3, 1.0 / 3}), (Sms{48, 40, 44}));
}

TEST(SmSplit, RangesFollowEachOther) {
  const auto ranges = plan_sm_split(kH200, std::vector{0.3, 0.3, 0.4});
  EXPECT_EQ(ranges[0], (SmRange{0, 5, false}));
  EXPECT_EQ(ranges[1], (SmRange{5, 10, false}));
  EXPECT_EQ(ranges[2], (SmRange{10, 16, true}));
}

TEST(SmSplit, RefusesSharesThatAreNone) {
  EXPECT_THAT(error_of([] { split({0.5, 0.6}); }), HasSubstr("sum to more than 1"));
  EXPECT_THAT(error_of([] { split({0.0}); }), HasSubstr("sm_share 0 is not in (0, 1]"));
  EXPECT_THAT(error_of([] { split({1.5}); }), HasSubstr("not in (0, 1]"));
  EXPECT_THAT(error_of([] { split({0.02}); }),
              HasSubstr("sm_share 0.02 of 132 SMs is less than the smallest group of 8; use at "
                        "least 0.061"));
}

constexpr SmLimits kSm;

TEST(Residency, CountsBlocksOfAnSm) {
  EXPECT_EQ(ctas_per_sm(kSm, {"threads", 1024, 16, 0}), 2U);
  EXPECT_EQ(ctas_per_sm(kSm, {"registers", 384, 168, 0}), 1U);
  EXPECT_EQ(ctas_per_sm(kSm, {"registers", 128, 255, 0}), 2U);
  EXPECT_EQ(ctas_per_sm(kSm, {"shared", 128, 32, 113 * 1024}), 2U);
  EXPECT_EQ(ctas_per_sm(kSm, {"shared", 128, 32, 114 * 1024}), 1U);
  EXPECT_EQ(ctas_per_sm(kSm, {"blocks", 128, 16, 0}), 16U);
  EXPECT_EQ(ctas_per_sm(kSm, {"blocks", 32, 16, 0}), 32U);
  EXPECT_EQ(ctas_per_sm(kSm, {"blocks", 32, 32, 0}), 16U) << "on the safe side: really 32";
}

TEST(Residency, AClusterNeedsAGroupOfNeighboursWithRoom) {
  const std::vector<CtaFootprint> working{{"gemm", 384, 168, 227 * 1024, 8}};  // bears nobody
  const auto with = [&](std::uint32_t num_waiting) {
    return check_residency(kSm, 132, std::vector<WaitingCtas>{{{"wait", 64, 40, 280}, num_waiting}},
                           working);
  };
  EXPECT_TRUE(with(15));
  EXPECT_FALSE(with(16));  // one in each of 16 groups
}

TEST(Residency, OneWaitingBlockALaneLeavesRoom) {
  const std::vector<WaitingCtas> waiting{{{"wait", 32, 32, 0}, 8}};
  const std::vector<CtaFootprint> working{{"gemm", 384, 168, 227 * 1024}};
  EXPECT_TRUE(check_residency(kSm, 8 + 1, waiting, working));
  // As many waiting blocks as SMs may lie one on each, and the product needs an SM for itself.
  const Status full = check_residency(kSm, 8, waiting, working);
  EXPECT_EQ(full.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(full.message(), HasSubstr("8 blocks may wait at once, and 1 on each of 8 SMs leave "
                                        "no room for a block of gemm"));
}

TEST(Residency, CountsWhatEveryKernelNeeds) {
  // Beside a block of 1024 threads, half an SM holds two waiting blocks of 512.
  const std::vector<CtaFootprint> working{{"small", 128, 32, 0}, {"norm", 1024, 32, 0}};
  EXPECT_TRUE(
      check_residency(kSm, 10, std::vector<WaitingCtas>{{{"wait", 512, 32, 0}, 29}}, working));
  EXPECT_FALSE(
      check_residency(kSm, 10, std::vector<WaitingCtas>{{{"wait", 512, 32, 0}, 30}}, working));
  EXPECT_TRUE(check_residency(kSm, 10, {}, working));
  EXPECT_THAT(
      check_residency(kSm, 10, {}, std::vector<CtaFootprint>{{"huge", 1024, 128, 0}}).message(),
      HasSubstr("huge (1024 threads, 128 registers a thread, 0 bytes of shared memory) does "
                "not fit on an SM"));
}

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(MemoryBudget, ThePoolTakesWhatIsLeft) {
  const DeviceMemory memory{130 * kGiB, 140 * kGiB};
  const auto budget = plan_memory(memory, {.fraction = 0.5,
                                           .weights_bytes = 30 * kGiB,
                                           .workspace_bytes = 2 * kGiB,
                                           .windows_bytes = kGiB,
                                           .bytes_per_page = 3 << 20,
                                           .min_pages = 8});
  EXPECT_EQ(budget.budget_bytes, 70 * kGiB);
  EXPECT_EQ(budget.num_pages, 37 * 1024 / 3);
  EXPECT_EQ(budget.kv_bytes, budget.num_pages * (3 << 20));
  EXPECT_EQ(budget.arithmetic,
            "gpu_memory_fraction 0.5 x 140.00 GiB = 70.00 GiB: weights 30.00 GiB + workspace 2.00 "
            "GiB + windows 1.00 GiB + KV 37.00 GiB (12629 pages of 3145728 bytes)");
}

TEST(MemoryBudget, StatesOfAllSlotsComeBeforeThePool) {
  MemoryDemand demand{.fraction = 0.5, .states_bytes = 8 * kGiB, .bytes_per_page = 1 << 20};
  const auto budget = plan_memory({130 * kGiB, 140 * kGiB}, demand);
  EXPECT_EQ(budget.kv_bytes, 62 * kGiB);
  EXPECT_THAT(budget.arithmetic, HasSubstr("+ windows 0.00 GiB + recurrent state 8.00 GiB + KV"));
  demand.states_bytes = 70 * kGiB;
  EXPECT_THAT(error_of([&] {
                plan_memory({130 * kGiB, 140 * kGiB}, demand);
              }),
              HasSubstr("lower max_model_len or max_sequences or max_batched_tokens"));
}

TEST(MemoryBudget, ThePoolTakesNoMoreThanIsOfUse) {
  const auto budget = plan_memory({130 * kGiB, 140 * kGiB},
                                  {.fraction = 0.5, .bytes_per_page = 1 << 20, .max_pages = 2048});
  EXPECT_EQ(budget.num_pages, 2048U);
  EXPECT_EQ(budget.kv_bytes, 2 * kGiB);
  EXPECT_THAT(budget.arithmetic, HasSubstr("KV 2.00 GiB (2048 pages of 1048576 bytes)"));
}

TEST(MemoryBudget, PagesThatWereAskedForMustFit) {
  MemoryDemand demand{.fraction = 0.5,
                      .weights_bytes = 60 * kGiB,
                      .bytes_per_page = 1 << 20,
                      .min_pages = 10240,
                      .max_pages = 10240};
  EXPECT_EQ(plan_memory({130 * kGiB, 140 * kGiB}, demand).num_pages, 10240U);
  demand.weights_bytes = 61 * kGiB;
  EXPECT_EQ(error_of([&] {
              plan_memory({130 * kGiB, 140 * kGiB}, demand);
            }),
            "gpu_memory_fraction 0.5 x 140.00 GiB = 70.00 GiB don't hold weights 61.00 GiB + "
            "workspace 0.00 GiB + windows 0.00 GiB + 10240 KV pages of 1048576 bytes = 71.00 GiB; "
            "raise gpu_memory_fraction, lower kv_cache.pages or max_batched_tokens, or spread the "
            "model over more servers");
}

TEST(MemoryBudget, AServerWithoutAPoolHasNone) {
  const auto budget =
      plan_memory({130 * kGiB, 140 * kGiB}, {.fraction = 0.9, .weights_bytes = 100 * kGiB});
  EXPECT_EQ(budget.num_pages, 0U);
  EXPECT_THAT(budget.arithmetic, HasSubstr("weights 100.00 GiB"));
}

TEST(MemoryBudget, TooLittleMemoryIsAnErrorWithTheArithmetic) {
  const MemoryDemand demand{.fraction = 0.25,
                            .weights_bytes = 33 * kGiB,
                            .workspace_bytes = kGiB,
                            .windows_bytes = kGiB,
                            .bytes_per_page = kGiB / 1024,
                            .min_pages = 512};
  EXPECT_EQ(
      error_of([&] {
        plan_memory({130 * kGiB, 140 * kGiB}, demand);
      }),
      "gpu_memory_fraction 0.25 x 140.00 GiB = 35.00 GiB don't hold weights 33.00 GiB + "
      "workspace 1.00 GiB + windows 1.00 GiB + 512 KV pages of 1048576 bytes for one sequence "
      "= 35.50 GiB; raise gpu_memory_fraction, lower max_model_len or max_batched_tokens, or "
      "spread the model over more servers");
}

TEST(MemoryBudget, WhatOthersHoldIsNotThere) {
  EXPECT_EQ(error_of([] {
              plan_memory({60 * kGiB, 140 * kGiB}, {.fraction = 0.5});
            }),
            "gpu_memory_fraction 0.5 x 140.00 GiB = 70.00 GiB, but only 60.00 GiB are free; end "
            "what else runs on this GPU, or use at most 0.42");
  EXPECT_THAT(error_of([] {
                plan_memory({kGiB, kGiB}, {.fraction = 1.5});
              }),
              HasSubstr("gpu_memory_fraction 1.5 is not in (0, 1]"));
}

class CacheFetchTest : public ::testing::Test {
 protected:
  /// How often fetching goes on for the ranges under this id before all is there, or until `limit`.
  int rounds(std::uint64_t id, int limit = 1000) {
    int count = 0;
    fetch_.run(id, ranges_, [&] { return count++ == limit; });
    return std::min(count, limit);
  }

  // Three rounds of 64 cache lines, and one.
  std::vector<std::byte> long_ = std::vector<std::byte>(10'000);
  std::vector<std::byte> short_ = std::vector<std::byte>(1);
  MemoryRanges ranges_ = {long_, short_};
  CacheFetch fetch_;
};

TEST_F(CacheFetchTest, GoesOverEverythingOnce) {
  EXPECT_EQ(rounds(7), 4);
  EXPECT_EQ(rounds(7), 0);
  EXPECT_EQ(rounds(8), 4);
}

TEST_F(CacheFetchTest, StopsWhenTheAnswerIsThereAndGoesOnAtThatPlace) {
  EXPECT_EQ(rounds(7, 0), 0);
  EXPECT_EQ(rounds(7, 2), 2);
  EXPECT_EQ(rounds(7), 2);
  EXPECT_EQ(rounds(8, 1), 1);
  EXPECT_EQ(rounds(9), 4) << "another id begins at the beginning";
}

TEST_F(CacheFetchTest, FirstBytesCutsAndLeavesOutWhatIsEmpty) {
  EXPECT_EQ(first_bytes({{}, long_, {}, short_}, 1 << 20).size(), 2U);
  const auto cut = first_bytes(ranges_, 9'000);
  ASSERT_EQ(cut.size(), 1U);
  EXPECT_EQ(cut[0].data(), long_.data());
  EXPECT_EQ(cut[0].size(), 9'000U);
  EXPECT_TRUE(first_bytes(ranges_, 0).empty());
  EXPECT_GT(cache_fetch_bytes(), 0U);
}

}  // namespace
}  // namespace fastfd::device
