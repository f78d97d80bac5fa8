/// One suite for every transport and for waiting with and without spinning.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <tuple>
#include <vector>

#include "fastfd/core/check.h"
#include "unit/transport_support.h"
#include "unit/transport_workload.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class Ports : public testing::TestWithParam<std::tuple<Kind, std::uint32_t>> {
 protected:
  WaitPolicy policy() const { return {std::get<1>(GetParam())}; }
  Cluster make(std::uint32_t num_attention, std::uint32_t num_ffn,
               const WindowShape& shape = small_shape(), Epoch epoch = 1) const {
    return make_cluster(std::get<0>(GetParam()), shape, num_attention, num_ffn, policy(), epoch);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Transports, Ports,
    testing::Combine(testing::Values(Kind::kInproc, Kind::kShm), testing::Values(0U, 50U)),
    [](const auto& param_info) {
      return std::string(std::get<0>(param_info.param) == Kind::kInproc ? "inproc" : "shm") +
             (std::get<1>(param_info.param) == 0 ? "_futex" : "_spin");
    });

TEST_P(Ports, RoundTripOfEveryNumberOfRows) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  AttentionPort& attention = *cluster.attention[0];
  FfnPort& ffn = *cluster.ffn[0];
  StepId step = 1;
  for (std::uint32_t num_rows = 0; num_rows <= shape.max_lane_rows; ++num_rows, ++step) {
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      const HopId hop{1, step, layer, step % kMaxLanes == 0 ? 3U : 1U};
      EXPECT_FALSE(ffn.dispatch_ready(hop, 1));
      send_dispatch(attention, shape, 0, 0, hop, num_rows);
      EXPECT_TRUE(ffn.dispatch_ready(hop, 1));
      EXPECT_EQ(check_dispatch(ffn, shape, 0, 0, hop, num_rows), "");
      EXPECT_FALSE(attention.combine_ready(hop));
      send_combine(ffn, shape, 0, 0, hop, num_rows);
      EXPECT_TRUE(attention.combine_ready(hop));
      EXPECT_EQ(attention.wait_combine(hop, kHang), WaitOutcome::kReady);
      EXPECT_TRUE(combine_is_right(attention, shape, 0, 0, hop, num_rows));
    }
  }
}

// FAULTS 3: one pool uses one peer's token count for all.
TEST_P(Ports, CountsArePerPeer) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(3, 2);
  const HopId hop{1, 1, 0, 0};
  const std::uint32_t rows[3][2] = {{0, 9}, {4, 1}, {9, 0}};
  for (ServerRank a = 0; a < 3; ++a) {
    for (ServerRank f = 0; f < 2; ++f) {
      send_dispatch(*cluster.attention[a], shape, a, f, hop, rows[a][f]);
    }
  }
  for (ServerRank f = 0; f < 2; ++f) {
    ASSERT_TRUE(cluster.ffn[f]->dispatch_ready(hop, 0b111));
    for (ServerRank a = 0; a < 3; ++a) {
      EXPECT_EQ(check_dispatch(*cluster.ffn[f], shape, a, f, hop, rows[a][f]), "");
      send_combine(*cluster.ffn[f], shape, a, f, hop, rows[a][f]);
    }
  }
  for (ServerRank a = 0; a < 3; ++a) {
    ASSERT_TRUE(cluster.attention[a]->combine_ready(hop));
    for (ServerRank f = 0; f < 2; ++f) {
      EXPECT_TRUE(combine_is_right(*cluster.attention[a], shape, a, f, hop, rows[a][f]));
    }
  }
}

// FAULTS 2: a server without rows sends and is answered all the same.
TEST_P(Ports, ZeroRowsAreAMessage) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(2, 1);
  const HopId hop{1, 1, 0, 0};
  send_dispatch(*cluster.attention[0], shape, 0, 0, hop, 3);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(hop, 0b11));
  send_dispatch(*cluster.attention[1], shape, 1, 0, hop, 0);
  EXPECT_TRUE(cluster.ffn[0]->dispatch_ready(hop, 0b11));
  send_combine(*cluster.ffn[0], shape, 1, 0, hop, 0);
  EXPECT_EQ(cluster.attention[1]->wait_combine(hop, kHang), WaitOutcome::kReady);
  EXPECT_FALSE(cluster.attention[0]->combine_ready(hop));
}

TEST_P(Ports, OnlyParticipantsAreAwaited) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(3, 1);
  const HopId hop{1, 1, 0, 0};
  send_dispatch(*cluster.attention[1], shape, 1, 0, hop, 2);
  EXPECT_TRUE(cluster.ffn[0]->dispatch_ready(hop, 0b010));
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(hop, 0b011));
  EXPECT_EQ(cluster.ffn[0]->missing_peers(hop, 0b010), "");
  EXPECT_EQ(cluster.ffn[0]->missing_peers(hop, 0b011), "attention server 0");
  EXPECT_EQ(cluster.ffn[0]->missing_peers(hop, 0b111), "attention servers 0, 2");
}

TEST_P(Ports, LanesAndLayersAreApart) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    send_dispatch(*cluster.attention[0], shape, 0, 0, {1, 1, 0, lane}, lane + 1);
  }
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    EXPECT_EQ(check_dispatch(*cluster.ffn[0], shape, 0, 0, {1, 1, 0, lane}, lane + 1), "");
    EXPECT_FALSE(cluster.ffn[0]->dispatch_ready({1, 1, 1, lane}, 1));
    EXPECT_FALSE(cluster.ffn[0]->dispatch_ready({1, 2, 0, lane}, 1));
  }
}

TEST_P(Ports, BuffersAlternateByLayer) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  AttentionPort& attention = *cluster.attention[0];
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    const HopId hop{1, 1, layer, 0};
    send_dispatch(attention, shape, 0, 0, hop, 5);
    send_combine(*cluster.ffn[0], shape, 0, 0, hop, 5);
  }
  // Layer 0's results are still there after layer 1 came and went.
  EXPECT_TRUE(combine_is_right(attention, shape, 0, 0, {1, 1, 0, 0}, 5));
  EXPECT_EQ(check_dispatch(*cluster.ffn[0], shape, 0, 0, {1, 1, 0, 0}, 5), "");
  EXPECT_NE(attention.combine_rows(0, {1, 1, 0, 0}), attention.combine_rows(0, {1, 1, 1, 0}));
  // Addresses depend on the layer's parity alone: a captured graph may keep them.
  EXPECT_EQ(attention.combine_rows(0, {1, 1, 0, 0}), attention.combine_rows(0, {1, 8, 2, 0}));
  EXPECT_EQ(attention.dispatch_buffer(0, {1, 1, 1, 0}).rows,
            attention.dispatch_buffer(0, {1, 2, 3, 0}).rows);
}

TEST_P(Ports, WaitTimesOutAndNamesWhoIsMissing) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 3);
  const HopId hop{1, 1, 0, 0};
  for (ServerRank f = 0; f < 3; ++f) {
    send_dispatch(*cluster.attention[0], shape, 0, f, hop, 2);
  }
  send_combine(*cluster.ffn[1], shape, 0, 1, hop, 2);
  EXPECT_EQ(cluster.attention[0]->wait_combine(hop, milliseconds(2)), WaitOutcome::kTimedOut);
  EXPECT_EQ(cluster.attention[0]->missing_peers(hop), "FFN servers 0, 2");
  send_combine(*cluster.ffn[0], shape, 0, 0, hop, 2);
  EXPECT_EQ(cluster.attention[0]->missing_peers(hop), "FFN server 2");
  send_combine(*cluster.ffn[2], shape, 0, 2, hop, 2);
  EXPECT_EQ(cluster.attention[0]->wait_combine(hop, kHang), WaitOutcome::kReady);
  EXPECT_EQ(cluster.attention[0]->missing_peers(hop), "");
  const std::uint32_t seen = cluster.ffn[0]->doorbell();
  EXPECT_EQ(cluster.ffn[0]->wait(seen, milliseconds(2)), WaitOutcome::kTimedOut);
}

TEST_P(Ports, RingWakesTheFfnServerAlsoIfItCameFirst) {
  const Cluster cluster = make(1, 1);
  FfnPort& ffn = *cluster.ffn[0];
  std::uint32_t seen = ffn.doorbell();
  ffn.ring();
  EXPECT_EQ(ffn.wait(seen, kHang), WaitOutcome::kWoken);
  seen = ffn.doorbell();
  auto waiting = std::async(std::launch::async, [&] { return ffn.wait(seen, kHang); });
  std::this_thread::sleep_for(milliseconds(2));  // most often asleep by now; right either way
  ffn.ring();
  EXPECT_EQ(waiting.get(), WaitOutcome::kWoken);
}

TEST_P(Ports, DispatchWakesTheFfnServerAndCombineTheAttentionServer) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId hop{1, 1, 0, 0};
  FfnPort& ffn = *cluster.ffn[0];
  AttentionPort& attention = *cluster.attention[0];
  auto serving = std::async(std::launch::async, [&] {
    for (;;) {
      const std::uint32_t seen = ffn.doorbell();
      if (ffn.dispatch_ready(hop, 1)) {
        break;
      }
      if (ffn.wait(seen, kHang) != WaitOutcome::kWoken) {
        return false;
      }
    }
    std::this_thread::sleep_for(milliseconds(2));
    send_combine(ffn, shape, 0, 0, hop, 4);
    return true;
  });
  std::this_thread::sleep_for(milliseconds(2));
  send_dispatch(attention, shape, 0, 0, hop, 4);
  EXPECT_EQ(attention.wait_combine(hop, kHang), WaitOutcome::kReady);
  EXPECT_TRUE(serving.get());
}

TEST_P(Ports, AbortEndsWaitsUntilTheNextEpoch) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  AttentionPort& attention = *cluster.attention[0];
  FfnPort& ffn = *cluster.ffn[0];
  const HopId hop{1, 1, 0, 0};
  const std::uint32_t seen = ffn.doorbell();
  auto attention_waits =
      std::async(std::launch::async, [&] { return attention.wait_combine(hop, kHang); });
  auto ffn_waits = std::async(std::launch::async, [&] {
    WaitOutcome outcome = ffn.wait(seen, kHang);
    while (outcome == WaitOutcome::kWoken) {
      outcome = ffn.wait(ffn.doorbell(), kHang);
    }
    return outcome;
  });
  std::this_thread::sleep_for(milliseconds(2));
  attention.abort();
  ffn.abort();
  EXPECT_EQ(attention_waits.get(), WaitOutcome::kAborted);
  EXPECT_EQ(ffn_waits.get(), WaitOutcome::kAborted);
  // Sticky.
  EXPECT_EQ(attention.wait_combine(hop, kHang), WaitOutcome::kAborted);
  EXPECT_EQ(ffn.wait(ffn.doorbell(), kHang), WaitOutcome::kAborted);
  attention.begin_epoch(2);
  ffn.begin_epoch(2);
  const HopId next{2, 2, 0, 0};
  EXPECT_EQ(attention.wait_combine(next, milliseconds(1)), WaitOutcome::kTimedOut);
  send_dispatch(attention, shape, 0, 0, next, 1);
  EXPECT_TRUE(ffn.dispatch_ready(next, 1));
}

TEST_P(Ports, RingDoesNotEndAWaitForCombine) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId hop{1, 1, 0, 0};
  send_dispatch(*cluster.attention[0], shape, 0, 0, hop, 1);
  auto waits = std::async(std::launch::async,
                          [&] { return cluster.attention[0]->wait_combine(hop, kHang); });
  for (int i = 0; i < 20; ++i) {
    cluster.attention[0]->ring();
    std::this_thread::yield();
  }
  send_combine(*cluster.ffn[0], shape, 0, 0, hop, 1);
  EXPECT_EQ(waits.get(), WaitOutcome::kReady);
}

TEST_P(Ports, BrokenInvariantsAreNamed) {
  const Cluster cluster = make(1, 1);
  const HopId hop{1, 1, 0, 0};
  EXPECT_THROW(cluster.attention[0]->dispatch_buffer(1, hop), InternalError);
  EXPECT_THROW(cluster.attention[0]->dispatch_buffer(0, {1, 1, 0, kMaxLanes}), InternalError);
  EXPECT_THROW(cluster.attention[0]->combine_ready({1, 1, 4, 0}), InternalError);
  EXPECT_THROW(cluster.attention[0]->send_dispatch(0, hop, 10, 0), InternalError);
  EXPECT_THROW(static_cast<void>(cluster.ffn[0]->dispatch(1, hop)), InternalError);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(hop, 0b10));
  EXPECT_EQ(cluster.ffn[0]->missing_peers(hop, 0b10), "attention server 1");
  cluster.ffn[0]->begin_epoch(3);
  EXPECT_THROW(cluster.ffn[0]->begin_epoch(2), InternalError);
}

/// Every pair, all lanes, random participants and counts, payloads that can't be mistaken.
void run_threads(const Cluster& cluster, const Workload& load) {
  std::vector<std::future<std::string>> servers;
  for (ServerRank f = 0; f < load.num_ffn; ++f) {
    servers.push_back(
        std::async(std::launch::async, [&, f] { return run_ffn(load, *cluster.ffn[f], f); }));
  }
  for (ServerRank a = 0; a < load.num_attention; ++a) {
    servers.push_back(std::async(std::launch::async,
                                 [&, a] { return run_attention(load, *cluster.attention[a], a); }));
  }
  for (auto& server : servers) {
    EXPECT_EQ(server.get(), "");
  }
}

TEST_P(Ports, RandomHopsArriveWhole) {
  // An odd number of layers uses one buffer twice in a row where a step ends.
  for (const std::uint32_t num_layers : {1U, 3U, 4U}) {
    Workload load;
    load.shape = small_shape(num_layers);
    load.num_attention = 3;
    load.num_ffn = 2;
    load.num_steps = 40;
    load.seed = num_layers;
    run_threads(make(3, 2, load.shape), load);
  }
}

TEST_P(Ports, MoreFfnThanAttentionServers) {
  Workload load;
  load.shape = small_shape(2);
  load.shape.dispatch_dtype = DType::kFloat32;
  load.shape.combine_dtype = DType::kBFloat16;
  load.num_attention = 1;
  load.num_ffn = 3;
  load.num_steps = 40;
  load.epoch = 70000;  // more than the flag's 16 bits hold
  run_threads(make(1, 3, load.shape, load.epoch), load);
}

}  // namespace
}  // namespace fastfd::transport
