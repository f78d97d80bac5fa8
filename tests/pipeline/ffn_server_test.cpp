#include "fastfd/ffn_server/ffn_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <random>

#include "fastfd/transport/inproc.h"

namespace fastfd::ffn_server {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint32_t kHidden = 64;
constexpr std::uint32_t kIntermediate = 32;
constexpr std::uint32_t kExperts = 5;
constexpr std::uint32_t kLayers = 2;
constexpr std::uint32_t kTopK = 3;
constexpr std::uint32_t kRows = 16;
constexpr std::uint32_t kPeers = 3;
constexpr Epoch kEpoch = 4;

struct Route {
  std::uint32_t expert;
  float weight;
};
struct Row {
  std::vector<float> hidden;
  std::vector<Route> routes;
};

std::shared_ptr<const model::FfnWeights> random_weights() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  const auto matrix = [&](std::size_t count) {
    std::vector<bf16> values(count);
    for (auto& value : values) {
      value = bf16::from_float(normal(random));
    }
    return values;
  };
  auto weights = std::make_shared<model::FfnWeights>();
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    auto& to = weights->layers.emplace_back();
    to.intermediate_dim = kIntermediate;
    for (std::uint32_t expert = 0; expert < kExperts; ++expert) {
      const auto gate = matrix(kIntermediate * kHidden);
      const auto up = matrix(kIntermediate * kHidden);
      const auto down = matrix(kHidden * kIntermediate);
      to.experts.push_back(kernels::ExpertWeights::pack(gate.data(), up.data(), down.data(),
                                                        kHidden, kIntermediate));
    }
  }
  return weights;
}

// One FFN server and the attention servers' ends, which the tests play themselves.
class FfnServerTest : public ::testing::Test {
 protected:
  FfnServerTest()
      : weights_(random_weights()),
        fabric_({.max_lane_rows = kRows,
                 .hidden_dim = kHidden,
                 .max_routes_per_row = kTopK,
                 .num_layers = kLayers,
                 .dispatch_dtype = DType::kFloat32,
                 .combine_dtype = DType::kFloat32},
                kPeers, 1, {.spin_us = 0}, kEpoch),
        server_({.rank = 0,
                 .precision = Precision::kFloat32,
                 .dispatch_dtype = DType::kFloat32,
                 .combine_dtype = DType::kFloat32,
                 .threads = 1,
                 .max_lane_rows = kRows,
                 .num_attention_servers = kPeers},
                spec(), weights_, [this](const Status& status) { failure_.set_value(status); }) {
    server_.begin_epoch(kEpoch, fabric_.ffn_port(0));
  }

  static model::ModelSpec spec() {
    model::ModelSpec spec;
    spec.hidden_dim = kHidden;
    spec.num_layers = kLayers;
    spec.num_experts = kExperts;
    spec.experts_per_token = kTopK;
    spec.expert_intermediate_dim = kIntermediate;
    return spec;
  }

  static FfnStepPlan plan(StepId step, std::vector<std::pair<LaneId, ServerMask>> lanes) {
    FfnStepPlan plan;
    plan.epoch = kEpoch;
    plan.step = step;
    plan.num_lanes = static_cast<std::uint32_t>(lanes.size());
    for (const auto& [lane, participants] : lanes) {
      FfnLanePlan entry;
      entry.lane = lane;
      entry.participants = participants;
      plan.lanes.push_back(entry);
    }
    return plan;
  }

  std::vector<Row> random_rows(std::size_t count) {
    std::vector<Row> rows(count);
    for (auto& row : rows) {
      row.hidden.resize(kHidden);
      for (auto& value : row.hidden) {
        value = std::normal_distribution<float>()(random_);
      }
      const std::size_t num_routes = random_() % (kTopK + 1);
      for (std::size_t i = 0; i < num_routes; ++i) {
        row.routes.push_back({static_cast<std::uint32_t>((random_() + i) % kExperts), 0.25F});
      }
    }
    return rows;
  }

  void dispatch(ServerRank rank, const transport::HopId& hop, const std::vector<Row>& rows) {
    auto port = fabric_.attention_port(rank);
    const auto writer = port->dispatch_buffer(0, hop);
    std::uint32_t num_routes = 0;
    writer.route_offsets[0] = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(writer.rows + i * kHidden * sizeof(float), rows[i].hidden.data(),
                  kHidden * sizeof(float));
      for (const Route& route : rows[i].routes) {
        writer.route_experts[num_routes] = route.expert;
        writer.route_weights[num_routes++] = route.weight;
      }
      writer.route_offsets[i + 1] = num_routes;
    }
    port->send_dispatch(0, hop, static_cast<std::uint32_t>(rows.size()), num_routes);
  }

  void expect_answer(ServerRank rank, const transport::HopId& hop, const std::vector<Row>& rows) {
    auto port = fabric_.attention_port(rank);
    ASSERT_EQ(port->wait_combine(hop, 10s), transport::WaitOutcome::kReady);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto expected = reference(rows[i], hop.layer);
      std::vector<float> answer(kHidden);
      std::memcpy(answer.data(), port->combine_rows(0, hop) + i * kHidden * sizeof(float),
                  kHidden * sizeof(float));
      for (std::uint32_t d = 0; d < kHidden; ++d) {
        ASSERT_NEAR(answer[d], expected[d], 1e-4F) << "row " << i << " dim " << d;
      }
    }
  }

  std::vector<float> reference(const Row& row, std::uint32_t layer) {
    std::vector<float> out(kHidden);
    const void* in = row.hidden.data();
    void* to = out.data();
    const std::uint32_t offsets[2] = {0, static_cast<std::uint32_t>(row.routes.size())};
    std::vector<std::uint32_t> experts;
    std::vector<float> route_weights;
    for (const Route& route : row.routes) {
      experts.push_back(route.expert);
      route_weights.push_back(route.weight);
    }
    kernels::reference_expert_ffn({.num_tokens = 1,
                                   .hidden_dim = kHidden,
                                   .intermediate_dim = kIntermediate,
                                   .token_rows = &in,
                                   .route_offsets = offsets,
                                   .route_experts = experts.data(),
                                   .route_weights = route_weights.data(),
                                   .experts = weights_->layers[layer].experts,
                                   .out_rows = &to});
    return out;
  }

  static transport::HopId hop(StepId step, std::uint32_t layer, LaneId lane = 0) {
    return {.epoch = kEpoch, .step = step, .layer = layer, .lane = lane};
  }

  std::mt19937 random_{42};
  std::promise<Status> failure_;
  std::shared_ptr<const model::FfnWeights> weights_;
  transport::InprocFabric fabric_;
  FfnServer server_;
};

TEST_F(FfnServerTest, CountsArePerPeerAndAPeerWithoutTokensIsAnswered) {
  server_.submit_plan(plan(1, {{0, 0b111}}));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<std::vector<Row>> rows = {random_rows(3), random_rows(0), random_rows(kRows)};
    for (ServerRank rank = 0; rank < kPeers; ++rank) {
      dispatch(rank, hop(1, layer), rows[rank]);
    }
    for (ServerRank rank = 0; rank < kPeers; ++rank) {
      expect_answer(rank, hop(1, layer), rows[rank]);
    }
  }
}

TEST_F(FfnServerTest, ALayerWithoutAnyTokenGoesOn) {
  server_.submit_plan(plan(1, {{0, 0b11}}));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    dispatch(0, hop(1, layer), {});
    dispatch(1, hop(1, layer), {});
    expect_answer(0, hop(1, layer), {});
    expect_answer(1, hop(1, layer), {});
  }
}

TEST_F(FfnServerTest, AllTokensMayWantOneExpert) {
  server_.submit_plan(plan(1, {{0, 0b1}}));
  auto rows = random_rows(kRows);
  for (auto& row : rows) {
    row.routes = {{4, 1.0F}};
  }
  dispatch(0, hop(1, 0), rows);
  expect_answer(0, hop(1, 0), rows);
}

TEST_F(FfnServerTest, TheLaneThatIsCompleteFirstRunsFirst) {
  server_.submit_plan(plan(1, {{0, 0b11}, {1, 0b11}}));
  const auto rows = random_rows(4);
  dispatch(0, hop(1, 0, 0), rows);  // lane 0 misses attention server 1
  dispatch(0, hop(1, 0, 1), rows);
  dispatch(1, hop(1, 0, 1), rows);
  expect_answer(1, hop(1, 0, 1), rows);
  EXPECT_FALSE(fabric_.attention_port(0)->combine_ready(hop(1, 0, 0)));
  dispatch(1, hop(1, 0, 0), rows);
  expect_answer(0, hop(1, 0, 0), rows);
}

TEST_F(FfnServerTest, AServerThatIsNotInALaneIsNotWaitedFor) {
  server_.submit_plan(plan(5, {{2, 0b100}}));
  const auto rows = random_rows(1);
  dispatch(2, hop(5, 0, 2), rows);
  expect_answer(2, hop(5, 0, 2), rows);
}

TEST_F(FfnServerTest, ADispatchMayArriveBeforeThePlan) {
  const auto rows = random_rows(2);
  dispatch(0, hop(1, 0), rows);
  server_.submit_plan(plan(1, {{0, 0b1}}));
  expect_answer(0, hop(1, 0), rows);
}

TEST_F(FfnServerTest, APlanOfAnotherEpochIsDropped) {
  auto stale = plan(1, {{0, 0b1}});
  stale.epoch = kEpoch - 1;
  server_.submit_plan(stale);
  const auto rows = random_rows(2);
  dispatch(0, hop(1, 0), rows);
  EXPECT_EQ(fabric_.attention_port(0)->wait_combine(hop(1, 0), 100ms),
            transport::WaitOutcome::kTimedOut);
}

TEST_F(FfnServerTest, AnExpertThatIsNotHereEndsTheEpochWithAReason) {
  server_.submit_plan(plan(1, {{0, 0b1}}));
  auto rows = random_rows(1);
  rows[0].routes = {{kExperts, 1.0F}};
  dispatch(0, hop(1, 0), rows);
  auto failure = failure_.get_future();
  ASSERT_EQ(failure.wait_for(10s), std::future_status::ready);
  EXPECT_THAT(failure.get().message(), HasSubstr("expert"));
}

TEST_F(FfnServerTest, StopReturnsWhileTheLoopWaitsForAPeerAndTheNextEpochStartsClean) {
  server_.submit_plan(plan(1, {{0, 0b11}}));
  dispatch(0, hop(1, 0), random_rows(1));
  server_.stop_epoch();
  transport::InprocFabric next({.max_lane_rows = kRows,
                                .hidden_dim = kHidden,
                                .max_routes_per_row = kTopK,
                                .num_layers = kLayers,
                                .dispatch_dtype = DType::kFloat32,
                                .combine_dtype = DType::kFloat32},
                               kPeers, 1, {.spin_us = 0}, kEpoch + 1);
  server_.begin_epoch(kEpoch + 1, next.ffn_port(0));
  auto again = plan(2, {{0, 0b1}});
  again.epoch = kEpoch + 1;
  server_.submit_plan(again);
  auto id = hop(2, 0);
  id.epoch = kEpoch + 1;
  auto port = next.attention_port(0);
  const auto writer = port->dispatch_buffer(0, id);
  writer.route_offsets[0] = 0;
  port->send_dispatch(0, id, 0, 0);
  EXPECT_EQ(port->wait_combine(id, 10s), transport::WaitOutcome::kReady);
}

}  // namespace
}  // namespace fastfd::ffn_server
