#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "gpu/dispatch_sender.h"
#include "kernels/router/op.h"

namespace fastfd::testing {
namespace {

/// Below what a float softmax can tell from 0.
constexpr double kTiny = 1e-30;

/// The k chosen experts score what the reference's k best do, in order; near ties may swap.
void expect_routes(const Sender& sender, const std::vector<float>& normed,
                   const std::vector<std::int32_t>& experts, const std::vector<float>& weights) {
  const DispatchCase& c = sender.shape();
  for (std::uint32_t row = 0; row < c.num_rows; ++row) {
    const auto [choice, scores] =
        sender.reference_scores(normed.data() + std::size_t{row} * c.hidden_dim);
    std::vector<double> best = choice;
    std::sort(best.begin(), best.end(), std::greater<>());
    std::set<std::int32_t> seen;
    double kept = 0.0;
    for (std::uint32_t k = 0; k < c.top_k; ++k) {
      const std::int32_t expert = experts[std::size_t{row} * c.top_k + k];
      ASSERT_GE(expert, 0);
      ASSERT_LT(static_cast<std::uint32_t>(expert), c.num_experts);
      ASSERT_TRUE(seen.insert(expert).second) << "expert " << expert << " twice in row " << row;
      ASSERT_NEAR(choice[expert], best[k], 2e-5 * std::abs(best[k]) + kTiny)
          << "row " << row << " k " << k;
      kept += scores[expert];
    }
    for (std::uint32_t k = 0; k < c.top_k; ++k) {
      const std::size_t at = std::size_t{row} * c.top_k + k;
      const double expected = scores[experts[at]] / (c.renormalize ? kept : 1.0) * c.scaling_factor;
      ASSERT_NEAR(weights[at], expected, 2e-5 * expected + kTiny) << "row " << row << " k " << k;
    }
  }
}

/// A payload row against normalised floats: bf16 rounds each value; e4m3 keeps 3 bits of each and
/// loses what is far below its group's scale.
void expect_payload(const layout::RowLayout& layout, const std::byte* row, const float* normed) {
  const std::vector<float> values = decode_row(layout, row);
  for (std::uint32_t group = 0; group < layout.hidden_dim; group += layout::kScaleGroup) {
    float largest = 0.0F;
    for (std::uint32_t i = group; i < group + layout::kScaleGroup; ++i) {
      largest = std::max(largest, std::abs(normed[i]));
    }
    const bool fp8 = layout.dtype == DType::kFloat8E4M3;
    const float relative = fp8 ? 1.0F / 16 : 1.0F / 256;
    const float absolute = fp8 ? largest / 448 / 1024 * 1.01F : 1e-6F;
    for (std::uint32_t i = group; i < group + layout::kScaleGroup; ++i) {
      ASSERT_NEAR(values[i], normed[i], relative * 1.001F * std::abs(normed[i]) + absolute)
          << "column " << i;
    }
  }
}

/// The window of every server holds exactly what it should, by what the kernel said it chose.
void expect_windows(Sender& sender, const std::vector<float>& normed,
                    const std::vector<std::int32_t>& experts, const std::vector<float>& weights) {
  const DispatchCase& c = sender.shape();
  const std::vector<std::int32_t> row_index = sender.row_index_.get();
  const std::vector<std::uint32_t> sent_rows = sender.sent_rows_.get();
  for (std::uint32_t server = 0; server < c.num_servers; ++server) {
    std::vector<std::byte> bytes = sender.windows_.get(server);
    const layout::DispatchSlot slot =
        sender.layout_.slot(bytes.data(), kTestHop.lane, kTestHop.buffer());
    ASSERT_EQ(*slot.flag, kTestHop.flag(sender.control_));
    EXPECT_EQ(slot.header->num_rows, sent_rows[server]);
    EXPECT_EQ(slot.header->epoch, sender.control_.epoch);
    EXPECT_EQ(slot.header->step, sender.control_.step);
    EXPECT_EQ(slot.header->layer, kTestHop.layer);
    EXPECT_EQ(slot.header->lane, kTestHop.lane);
    std::uint32_t num_rows = 0;
    std::uint32_t num_routes = 0;
    std::set<std::int32_t> positions;
    for (std::uint32_t row = 0; row < c.num_rows; ++row) {
      std::vector<std::pair<std::uint32_t, float>> expected;  // local expert, weight
      for (std::uint32_t k = 0; k < c.top_k; ++k) {
        const std::size_t at = std::size_t{row} * c.top_k + k;
        const auto target = sender.placement_.target(experts[at], 0);
        if (target.ffn_rank == server) {
          expected.emplace_back(target.local_expert, weights[at]);
        }
      }
      const std::int32_t position = row_index[std::size_t{server} * c.max_rows + row];
      if (expected.empty()) {
        ASSERT_EQ(position, -1) << "row " << row << " has nothing on server " << server;
        continue;
      }
      ASSERT_GE(position, 0);
      ASSERT_LT(static_cast<std::uint32_t>(position), sent_rows[server]);
      ASSERT_TRUE(positions.insert(position).second) << "position " << position << " taken twice";
      const std::uint32_t begin = slot.route_offsets[position];
      ASSERT_EQ(slot.route_offsets[position + 1] - begin, expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(slot.route_experts[begin + i], expected[i].first);
        EXPECT_EQ(slot.route_weights[begin + i], expected[i].second);
      }
      expect_payload(sender.row_, sender.row_.row(slot.rows, position),
                     normed.data() + std::size_t{row} * c.hidden_dim);
      ++num_rows;
      num_routes += static_cast<std::uint32_t>(expected.size());
    }
    EXPECT_EQ(sent_rows[server], num_rows);
    EXPECT_EQ(slot.header->num_routes, num_routes);
    EXPECT_EQ(slot.route_offsets[0], 0U);
    EXPECT_EQ(slot.route_offsets[num_rows], num_routes);
  }
}

class DispatchTest : public ::testing::TestWithParam<DispatchCase> {};

TEST_P(DispatchTest, FillsWindowsAsTheReferenceDoes) {
  Sender sender(GetParam());
  const DispatchCase& c = sender.shape();
  ASSERT_NO_FATAL_FAILURE(sender.run());
  EXPECT_EQ(sender.abort_.get().aborted, 0U);
  const std::vector<float> normed = sender.reference_normed();
  std::vector<float> stored = to_floats(sender.normed_.get());
  stored.resize(normed.size());
  EXPECT_LT(relative_error(stored, normed), 5e-3);
  const std::vector<std::int32_t> experts = sender.experts_.get();
  const std::vector<float> weights = sender.weights_.get();
  if (c.scoring == RouterScoring::kAll) {
    for (std::size_t at = 0; at < std::size_t{c.num_rows} * c.top_k; ++at) {
      EXPECT_EQ(static_cast<std::size_t>(experts[at]), at % c.top_k);
      EXPECT_EQ(weights[at], 1.0F);
    }
  } else {
    ASSERT_NO_FATAL_FAILURE(expect_routes(sender, normed, experts, weights));
  }
  if (c.routing == DispatchCase::kOneExpert) {
    for (std::uint32_t row = 0; row < c.num_rows; ++row) {
      EXPECT_EQ(static_cast<std::uint32_t>(experts[std::size_t{row} * c.top_k]), c.num_experts / 2);
    }
  }
  ASSERT_NO_FATAL_FAILURE(expect_windows(sender, normed, experts, weights));
}

constexpr DType kFp8 = DType::kFloat8E4M3;

INSTANTIATE_TEST_SUITE_P(
    Shapes, DispatchTest,
    ::testing::Values(
        DispatchCase{.num_rows = 0, .max_rows = 0, .num_servers = 3},
        DispatchCase{.num_rows = 0, .num_servers = 2},
        DispatchCase{.num_rows = 1, .max_rows = 1, .hidden_dim = 128, .top_k = 1},
        DispatchCase{.num_rows = 1, .hidden_dim = 128, .dtype = kFp8},
        DispatchCase{.num_rows = 7, .num_experts = 10, .top_k = 3, .num_servers = 3},
        DispatchCase{
            .num_rows = 16, .hidden_dim = 384, .num_experts = 10, .top_k = 10, .num_servers = 3},
        DispatchCase{.num_rows = 9, .num_experts = 1, .top_k = 1},
        DispatchCase{.num_rows = 13,
                     .hidden_dim = 640,
                     .top_k = 4,
                     .num_servers = 5,
                     .dtype = kFp8,
                     .norm_dtype = DType::kFloat32},
        DispatchCase{.num_rows = 33,
                     .max_rows = 48,
                     .hidden_dim = 1024,
                     .num_experts = 64,
                     .top_k = 8,
                     .num_servers = 4},
        DispatchCase{.num_rows = 64,
                     .max_rows = 64,
                     .hidden_dim = 2048,
                     .num_experts = 128,
                     .top_k = 8,
                     .num_servers = 2,
                     .dtype = kFp8},
        DispatchCase{.num_rows = 129,
                     .max_rows = 256,
                     .hidden_dim = 2048,
                     .num_experts = 128,
                     .top_k = 8,
                     .num_servers = 3,
                     .renormalize = false},
        DispatchCase{.num_rows = 21,
                     .max_rows = 32,
                     .hidden_dim = 3072,
                     .num_experts = 256,
                     .top_k = 8,
                     .num_servers = 4,
                     .dtype = kFp8,
                     .scoring = RouterScoring::kSigmoid,
                     .has_bias = true},
        DispatchCase{.num_rows = 40,
                     .max_rows = 64,
                     .hidden_dim = 4096,
                     .num_experts = 256,
                     .top_k = 6,
                     .num_servers = 2},
        DispatchCase{.num_rows = 5,
                     .max_rows = 8,
                     .hidden_dim = 8192,
                     .num_experts = 512,
                     .top_k = 32,
                     .num_servers = 7,
                     .dtype = kFp8},
        DispatchCase{.num_rows = 30,
                     .max_rows = 32,
                     .num_experts = 64,
                     .top_k = 4,
                     .num_servers = 40,
                     .scoring = RouterScoring::kSigmoid,
                     .renormalize = false,
                     .scaling_factor = 2.5F},
        DispatchCase{.num_rows = 50,
                     .max_rows = 64,
                     .num_experts = 64,
                     .top_k = 1,
                     .num_servers = 3,
                     .routing = DispatchCase::kOneExpert},
        DispatchCase{.num_rows = 50,
                     .max_rows = 64,
                     .hidden_dim = 512,
                     .num_experts = 16,
                     .top_k = 3,
                     .num_servers = 3,
                     .dtype = kFp8,
                     .routing = DispatchCase::kOneExpert},
        DispatchCase{.num_rows = 100,
                     .max_rows = 128,
                     .hidden_dim = 512,
                     .num_experts = 128,
                     .top_k = 8,
                     .num_servers = 4,
                     .scoring = RouterScoring::kSigmoid,
                     .has_bias = true,
                     .routing = DispatchCase::kZipf},
        DispatchCase{.num_rows = 11,
                     .num_experts = 3,
                     .top_k = 3,
                     .num_servers = 3,
                     .scoring = RouterScoring::kAll},
        DispatchCase{.num_rows = 11,
                     .num_experts = 1,
                     .top_k = 1,
                     .num_servers = 1,
                     .dtype = kFp8,
                     .scoring = RouterScoring::kAll}));

TEST(DispatchRouting, EqualScoresGoToTheLowerExpert) {
  Sender sender({.num_rows = 5, .num_experts = 40, .top_k = 4, .num_servers = 2});
  for (std::uint32_t e = 1; e < 40; ++e) {
    std::copy_n(sender.router_.begin(), 256, sender.router_.begin() + std::ptrdiff_t{e} * 256);
  }
  sender.device_router_.emplace(sender.router_);
  ASSERT_NO_FATAL_FAILURE(sender.run());
  const std::vector<std::int32_t> experts = sender.experts_.get();
  for (std::size_t at = 0; at < std::size_t{5} * 4; ++at) {
    EXPECT_EQ(static_cast<std::size_t>(experts[at]), at % 4);
  }
}

/// The routes of all rows by the CPU's naive router, from logits in double.
std::pair<std::vector<std::int32_t>, std::vector<float>> reference_routes(const Sender& sender) {
  const DispatchCase& c = sender.shape();
  const std::vector<float> normed = sender.reference_normed();
  std::vector<float> logits(std::size_t{c.num_rows} * c.num_experts);
  for (std::size_t row = 0; row < c.num_rows; ++row) {
    for (std::size_t e = 0; e < c.num_experts; ++e) {
      double sum = 0.0;
      for (std::size_t i = 0; i < c.hidden_dim; ++i) {
        sum += static_cast<double>(normed[row * c.hidden_dim + i]) *
               sender.router_[e * c.hidden_dim + i].to_float();
      }
      logits[row * c.num_experts + e] = static_cast<float>(sum);
    }
  }
  std::vector<std::int32_t> experts(std::size_t{c.num_rows} * c.top_k);
  std::vector<float> weights(experts.size());
  const bool is_sigmoid = c.scoring == RouterScoring::kSigmoid;
  kernels::reference_router({.num_rows = c.num_rows,
                             .num_experts = c.num_experts,
                             .top_k = c.top_k,
                             .logits = logits.data(),
                             .correction_bias = c.has_bias ? sender.bias_.data() : nullptr,
                             .rule = {.scoring = is_sigmoid ? kernels::RouterScoring::kSigmoid
                                                            : kernels::RouterScoring::kSoftmax,
                                      .renormalize = c.renormalize,
                                      .scaling_factor = c.scaling_factor,
                                      .num_groups = c.num_groups,
                                      .top_groups = c.top_groups,
                                      .group_score = c.group_score},
                             .experts = experts.data(),
                             .weights = weights.data()});
  return {experts, weights};
}

TEST(DispatchRouting, AgreesWithTheCpuRouter) {
  const DispatchCase plain{
      .num_rows = 37, .max_rows = 40, .hidden_dim = 512, .num_experts = 64, .top_k = 8};
  DispatchCase deepseek_v2 = plain;
  deepseek_v2.num_experts = 160;
  deepseek_v2.top_k = 6;
  deepseek_v2.renormalize = false;
  deepseek_v2.scaling_factor = 16.0F;
  deepseek_v2.num_groups = 8;
  deepseek_v2.top_groups = 3;
  DispatchCase deepseek_v3 = plain;
  deepseek_v3.num_experts = 256;
  deepseek_v3.scoring = RouterScoring::kSigmoid;
  deepseek_v3.scaling_factor = 2.5F;
  deepseek_v3.has_bias = true;
  deepseek_v3.num_groups = 8;
  deepseek_v3.top_groups = 4;
  deepseek_v3.group_score = kernels::GroupScore::kTopTwoSum;
  // Groups that a warp's lanes are not a multiple of, as many as there may be, and all of them.
  DispatchCase odd = deepseek_v3;
  odd.num_experts = 35;
  odd.num_groups = 7;
  odd.top_groups = 2;
  DispatchCase many = deepseek_v3;
  many.num_experts = 512;
  many.num_groups = 32;
  many.top_groups = 5;
  DispatchCase all = deepseek_v2;
  all.top_groups = 8;
  for (const DispatchCase& c : {plain, deepseek_v2, deepseek_v3, odd, many, all}) {
    Sender sender(c);
    ASSERT_NO_FATAL_FAILURE(sender.run());
    const auto [experts, weights] = reference_routes(sender);
    std::vector<std::int32_t> chosen = sender.experts_.get();
    std::vector<float> weighed = sender.weights_.get();
    chosen.resize(experts.size());
    weighed.resize(weights.size());
    EXPECT_EQ(chosen, experts) << c.num_groups << " groups";
    EXPECT_LT(relative_error(weighed, weights), 1e-5) << c.num_groups << " groups";
  }
}

TEST(DispatchRouting, EqualGroupsGoToTheLowerOne) {
  Sender sender({.num_rows = 3,
                 .num_experts = 40,
                 .top_k = 4,
                 .scoring = RouterScoring::kSigmoid,
                 .num_groups = 8,
                 .top_groups = 2,
                 .group_score = kernels::GroupScore::kTopTwoSum});
  for (std::uint32_t e = 1; e < 40; ++e) {
    std::copy_n(sender.router_.begin(), 256, sender.router_.begin() + std::ptrdiff_t{e} * 256);
  }
  sender.device_router_.emplace(sender.router_);
  ASSERT_NO_FATAL_FAILURE(sender.run());
  const std::vector<std::int32_t> experts = sender.experts_.get();
  for (std::size_t at = 0; at < std::size_t{3} * 4; ++at) {
    EXPECT_EQ(static_cast<std::size_t>(experts[at]), at % 4);
  }
}

TEST(DispatchRouting, NotANumberStaysInsideTheTables) {
  Sender sender({.num_rows = 4, .num_experts = 10, .top_k = 3, .num_servers = 3});
  sender.residual_[256 + 17] = NAN;
  sender.device_residual_.put(sender.residual_);
  ASSERT_NO_FATAL_FAILURE(sender.run());
  const std::vector<std::int32_t> experts = sender.experts_.get();
  EXPECT_EQ(std::vector<std::int32_t>(experts.begin() + 3, experts.begin() + 6),
            (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(sender.abort_.get().aborted, 0U);
}

TEST(DispatchRows, DoNotDependOnWhoSharesTheBatch) {
  const DispatchCase batch{.num_rows = 45,
                           .max_rows = 64,
                           .hidden_dim = 1024,
                           .num_experts = 128,
                           .top_k = 8,
                           .dtype = kFp8};
  Sender all(batch);
  ASSERT_NO_FATAL_FAILURE(all.run());
  const std::vector<float> weights = all.weights_.get();
  const std::vector<std::int32_t> experts = all.experts_.get();
  std::vector<std::byte> bytes = all.windows_.get(0);
  const layout::DispatchSlot slot =
      all.layout_.slot(bytes.data(), kTestHop.lane, kTestHop.buffer());
  const std::vector<std::int32_t> row_index = all.row_index_.get();
  for (const std::uint32_t row : {0U, 15U, 16U, 44U}) {
    DispatchCase alone = batch;
    alone.num_rows = 1;
    alone.max_rows = 1;
    Sender one(alone);
    one.router_ = all.router_;
    one.norm_ = all.norm_;
    one.device_router_.emplace(one.router_);
    one.device_norm_.put(one.norm_);
    one.device_residual_.put({all.residual_.begin() + std::ptrdiff_t{row} * 1024,
                              all.residual_.begin() + std::ptrdiff_t{row + 1} * 1024});
    ASSERT_NO_FATAL_FAILURE(one.run());
    const auto begin = std::ptrdiff_t{row} * 8;
    EXPECT_EQ(one.weights_.get(),
              std::vector<float>(weights.begin() + begin, weights.begin() + begin + 8));
    EXPECT_EQ(one.experts_.get(),
              std::vector<std::int32_t>(experts.begin() + begin, experts.begin() + begin + 8));
    std::vector<std::byte> one_bytes = one.windows_.get(0);
    const layout::DispatchSlot one_slot =
        one.layout_.slot(one_bytes.data(), kTestHop.lane, kTestHop.buffer());
    EXPECT_EQ(std::memcmp(one_slot.rows, all.row_.row(slot.rows, row_index[row]),
                          1024 + 8 * sizeof(float)),
              0);
  }
}

TEST(DispatchFaults, WhenAbortedNothingIsStoredAndNoFlagRaised) {
  Sender sender({.num_rows = 20, .max_rows = 32, .num_servers = 3});
  std::vector<std::vector<std::byte>> before;
  for (std::uint32_t server = 0; server < 3; ++server) {
    before.push_back(sender.windows_.get(server));
  }
  layout::AbortState aborted;
  aborted.aborted = 1;
  sender.abort_.put(aborted);
  ASSERT_NO_FATAL_FAILURE(sender.run());
  for (std::uint32_t server = 0; server < 3; ++server) {
    EXPECT_EQ(sender.windows_.get(server), before[server]) << "server " << server;
  }
  // The next epoch finds the counters as they should be.
  sender.abort_.put({});
  sender.control_.epoch += 1;
  ASSERT_NO_FATAL_FAILURE(sender.run());
  ASSERT_NO_FATAL_FAILURE(expect_windows(sender, sender.reference_normed(), sender.experts_.get(),
                                         sender.weights_.get()));
}

TEST(DispatchFaults, AnExpertOnAServerWithoutAWindowAborts) {
  Sender sender({.num_rows = 20, .max_rows = 32, .top_k = 8, .num_servers = 3});
  sender.windows_.forget(1);
  ASSERT_NO_FATAL_FAILURE(sender.run());
  const layout::AbortState abort = sender.abort_.get();
  EXPECT_EQ(abort.aborted, 1U);
  EXPECT_EQ(abort.reason, layout::AbortReason::kBadPlacement);
  EXPECT_EQ(abort.peer, 1U);
  EXPECT_EQ(abort.step, sender.control_.step);
  for (const std::uint32_t server : {0U, 2U}) {
    EXPECT_EQ(sender.windows_.get_flag(server, kTestHop.lane, kTestHop.buffer()), layout::kNoFlag);
  }
}

TEST(DispatchFaults, AGraphOfASmallerBucketStopsTheLane) {
  Sender sender({.num_rows = 17, .max_rows = 16, .num_servers = 2});
  ASSERT_NO_FATAL_FAILURE(sender.run());
  EXPECT_EQ(sender.abort_.get().reason, layout::AbortReason::kBadPlan);
  for (const std::uint32_t server : {0U, 1U}) {
    EXPECT_EQ(sender.windows_.get_flag(server, kTestHop.lane, kTestHop.buffer()), layout::kNoFlag);
  }
}

TEST(DispatchHops, OneLaunchTouchesOneSlot) {
  Sender sender({.num_rows = 12, .num_servers = 2});
  ASSERT_NO_FATAL_FAILURE(sender.run());
  for (std::uint32_t server = 0; server < 2; ++server) {
    std::vector<std::byte> bytes = sender.windows_.get(server);
    for (std::uint32_t lane = 0; lane < kMaxLanes; ++lane) {
      for (std::uint32_t buffer = 0; buffer < layout::kBuffersPerLane; ++buffer) {
        if (lane == kTestHop.lane && buffer == kTestHop.buffer()) {
          continue;
        }
        const layout::DispatchSlot slot = sender.layout_.slot(bytes.data(), lane, buffer);
        EXPECT_EQ(*slot.flag, layout::kNoFlag);
        const auto* begin = reinterpret_cast<const std::byte*>(slot.header);
        const auto* end =
            reinterpret_cast<const std::byte*>(slot.flag) + sender.layout_.grid.slot_bytes;
        EXPECT_TRUE(std::all_of(begin, end, [](std::byte b) { return b == Windows::kPattern; }));
      }
    }
  }
}

TEST(DispatchHops, AGraphFollowsStepRowsAndPlacement) {
  Sender sender({.num_rows = 12, .num_experts = 10, .top_k = 4, .num_servers = 3});
  const DispatchParams params = sender.params();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  require_cuda(cudaStreamBeginCapture(sender.stream_, cudaStreamCaptureModeThreadLocal), "capture");
  ASSERT_TRUE(launch_dispatch(params, sender.stream_));
  require_cuda(cudaStreamEndCapture(sender.stream_, &graph), "capture");
  require_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (const std::uint32_t num_rows : {3U, 0U, 16U, 1U}) {
    sender.control_.step += 1;
    sender.control_.epoch += 1;
    sender.case_.num_rows = num_rows;
    sender.placement_ = ExpertPlacement::contiguous(10, 3, 1 + num_rows % 3);
    std::vector<ExpertPlacement::Target> targets;
    for (std::uint32_t expert = 0; expert < 10; ++expert) {
      targets.push_back(sender.placement_.target(expert, 0));
    }
    sender.targets_.put(targets);
    sender.params();  // uploads the control block
    require_cuda(cudaGraphLaunch(exec, sender.stream_), "replay");
    sender.stream_.wait();
    ASSERT_NO_FATAL_FAILURE(expect_windows(sender, sender.reference_normed(), sender.experts_.get(),
                                           sender.weights_.get()));
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST(DispatchParamsTest, RefusesWhatItCannotDo) {
  Sender sender({});
  const auto refused = [&](auto change) {
    DispatchParams params = sender.params();
    change(params);
    return launch_dispatch(params, sender.stream_).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](DispatchParams& p) { p.hidden_dim = 200; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.max_rows = 1000; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.top_k = 9; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.num_experts = 513; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.num_groups = 3; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.top_groups = 2; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.num_groups = 16; }));  // one expert each
  EXPECT_TRUE(refused([](DispatchParams& p) { p.row.dtype = DType::kFloat32; }));
  EXPECT_TRUE(refused([](DispatchParams& p) { p.router.scoring = RouterScoring::kAll; }));
}

}  // namespace
}  // namespace fastfd::testing
