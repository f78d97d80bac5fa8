/// What a late, broken or lying peer can do to a live one: nothing.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "transport/memory.h"
#include "transport/window_layouts.h"
#include "transport/window_ports.h"
#include "unit/transport_support.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class LatePeers : public testing::TestWithParam<Kind> {
 protected:
  Cluster make(std::uint32_t num_attention, std::uint32_t num_ffn) const {
    return make_cluster(GetParam(), small_shape(), num_attention, num_ffn, {0});
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, LatePeers, testing::Values(Kind::kInproc, Kind::kShm),
                         [](const auto& param_info) {
                           return param_info.param == Kind::kInproc ? "inproc" : "shm";
                         });

// PROTOCOL 4: no buffer written under e is read under e + 1.
TEST_P(LatePeers, DataOfAnOlderEpochIsNeverReady) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId old_hop{1, 5, 0, 0};
  const HopId new_hop{2, 5, 0, 0};
  send_dispatch(*cluster.attention[0], shape, 0, 0, old_hop, 3);
  ASSERT_TRUE(cluster.ffn[0]->dispatch_ready(old_hop, 1));
  cluster.ffn[0]->begin_epoch(2);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(new_hop, 1));
  EXPECT_EQ(cluster.ffn[0]->missing_peers(new_hop, 1), "attention server 0");
}

// FAULTS 31: a plan of an old epoch arrives late, and its hop is looked for.
TEST_P(LatePeers, HopOfAnOlderEpochIsNeverReadyEither) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId old_hop{1, 5, 0, 0};
  send_dispatch(*cluster.attention[0], shape, 0, 0, old_hop, 3);
  send_combine(*cluster.ffn[0], shape, 0, 0, old_hop, 3);
  ASSERT_TRUE(cluster.attention[0]->combine_ready(old_hop));
  cluster.attention[0]->begin_epoch(2);
  cluster.ffn[0]->begin_epoch(2);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(old_hop, 1));
  EXPECT_FALSE(cluster.attention[0]->combine_ready(old_hop));
  EXPECT_EQ(cluster.attention[0]->wait_combine(old_hop, kHang), WaitOutcome::kAborted);
}

// FAULTS 27: a suspended writer resumes after the epoch change.
TEST_P(LatePeers, LateSendMovesNoFlagBack) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId late{1, 5, 0, 0};
  const HopId current{2, 5, 2, 0};  // the same buffer
  cluster.attention[0]->begin_epoch(2);
  cluster.ffn[0]->begin_epoch(2);
  send_dispatch(*cluster.attention[0], shape, 0, 0, current, 3);
  send_combine(*cluster.ffn[0], shape, 0, 0, current, 3);
  cluster.attention[0]->send_dispatch(0, late, 7, 0);
  cluster.ffn[0]->send_combine(0, late, 7);
  EXPECT_TRUE(cluster.ffn[0]->dispatch_ready(current, 1));
  EXPECT_EQ(check_dispatch(*cluster.ffn[0], shape, 0, 0, current, 3), "");
  EXPECT_TRUE(cluster.attention[0]->combine_ready(current));
  EXPECT_TRUE(combine_is_right(*cluster.attention[0], shape, 0, 0, current, 3));
}

// The flag alone does not tell: this window was never written.
TEST_P(LatePeers, LateSendRaisesNoFlagInAFreshWindow) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId late{1, 5, 0, 0};
  cluster.attention[0]->begin_epoch(2);
  send_dispatch(*cluster.attention[0], shape, 0, 0, late, 3);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(late, 1));
}

TEST_P(LatePeers, RepeatedOrEarlierSendMovesNoFlagBack) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  send_dispatch(*cluster.attention[0], shape, 0, 0, {1, 5, 2, 0}, 3);
  cluster.attention[0]->send_dispatch(0, {1, 5, 0, 0}, 0, 0);
  cluster.attention[0]->send_dispatch(0, {1, 5, 2, 0}, 0, 0);
  EXPECT_TRUE(cluster.ffn[0]->dispatch_ready({1, 5, 2, 0}, 1));
  EXPECT_EQ(check_dispatch(*cluster.ffn[0], shape, 0, 0, {1, 5, 2, 0}, 3), "");
}

// FAULTS 28: what runs on after an abort raises no flag at a live peer.
TEST_P(LatePeers, SendAfterAbortRaisesNoFlag) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 1);
  const HopId hop{1, 1, 0, 0};
  cluster.attention[0]->abort();
  send_dispatch(*cluster.attention[0], shape, 0, 0, hop, 3);
  EXPECT_FALSE(cluster.ffn[0]->dispatch_ready(hop, 1));
  cluster.ffn[0]->abort();
  send_combine(*cluster.ffn[0], shape, 0, 0, hop, 3);
  EXPECT_FALSE(cluster.attention[0]->combine_ready(hop));
}

TEST_P(LatePeers, RouteOffsetsThatDoNotFitAreSeen) {
  const Cluster cluster = make(1, 1);
  StepId step = 0;
  const auto problem_of = [&](std::initializer_list<std::uint32_t> offsets,
                              std::uint32_t num_routes) {
    const HopId hop{1, ++step, 0, 0};
    const DispatchWriter writer = cluster.attention[0]->dispatch_buffer(0, hop);
    std::copy(offsets.begin(), offsets.end(), writer.route_offsets);
    cluster.attention[0]->send_dispatch(0, hop, static_cast<std::uint32_t>(offsets.size()) - 1,
                                        num_routes);
    EXPECT_TRUE(cluster.ffn[0]->dispatch_ready(hop, 1));
    const DispatchReader reader = cluster.ffn[0]->dispatch(0, hop);
    EXPECT_EQ(reader.valid, *reader.problem == '\0');
    return std::string(reader.problem);
  };
  EXPECT_EQ(problem_of({0, 2, 2, 5}, 5), "");
  EXPECT_EQ(problem_of({1, 2, 2, 5}, 5), "route_offsets does not start at 0");
  EXPECT_EQ(problem_of({0, 2, 1, 3}, 3),
            "a row's routes run backwards or exceed max_routes_per_row");
  EXPECT_EQ(problem_of({0, 4, 4, 4}, 4),
            "a row's routes run backwards or exceed max_routes_per_row");
  EXPECT_EQ(problem_of({0, 2, 2, 5}, 4), "route_offsets does not end at num_routes");
  EXPECT_EQ(problem_of({0}, 1), "route_offsets does not end at num_routes");
}

TEST_P(LatePeers, CombineOfAnotherNumberOfRowsIsNoAnswer) {
  const WindowShape shape = small_shape();
  const Cluster cluster = make(1, 2);
  const HopId hop{1, 1, 0, 0};
  send_dispatch(*cluster.attention[0], shape, 0, 0, hop, 5);
  send_dispatch(*cluster.attention[0], shape, 0, 1, hop, 4);
  send_combine(*cluster.ffn[0], shape, 0, 0, hop, 5);
  send_combine(*cluster.ffn[1], shape, 0, 1, hop, 5);
  EXPECT_EQ(cluster.attention[0]->wait_combine(hop, milliseconds(2)), WaitOutcome::kTimedOut);
  EXPECT_EQ(cluster.attention[0]->missing_peers(hop),
            "FFN server 1 (answered 5 rows where 4 were sent)");
}

/// One FFN port over memory that the test can scribble on, as a broken peer would.
class BrokenPeer : public testing::Test {
 protected:
  BrokenPeer() {
    const WindowShape shape = small_shape();
    Result<Mapping> memory = Mapping::make_private(
        window_offset() + dispatch_layout(shape).bytes() + combine_layout(shape).bytes());
    mapping_ = std::make_shared<Mapping>(std::move(*memory));
    auto* page = reinterpret_cast<DoorbellPage*>(mapping_->data());
    PortParts parts{shape, {0}, 1, Doorbell(page), {}, mapping_};
    parts.pairs.push_back({window(), window() + dispatch_layout(shape).bytes(), Doorbell(page)});
    port_ = std::make_unique<WindowFfnPort>(std::move(parts));
  }

  static std::size_t window_offset() { return doorbell_bytes(); }
  std::byte* window() const { return mapping_->data() + window_offset(); }
  layout::DispatchSlot slot(const HopId& hop) const {
    return dispatch_layout(small_shape()).slot(window(), hop.lane, hop.layer % 2);
  }

  std::shared_ptr<Mapping> mapping_;
  std::unique_ptr<WindowFfnPort> port_;
};

TEST_F(BrokenPeer, GarbageCountsAreSeen) {
  const HopId hop{1, 1, 0, 0};
  *slot(hop).header = {/*num_rows=*/10, /*num_routes=*/0, hop.epoch,
                       hop.lane,        hop.step,         hop.layer};
  DispatchReader reader = port_->dispatch(0, hop);
  EXPECT_FALSE(reader.valid);
  EXPECT_STREQ(reader.problem, "more rows than max_lane_rows");
  slot(hop).header->num_rows = 0xffffffffU;
  EXPECT_FALSE(port_->dispatch(0, hop).valid);
  slot(hop).header->num_rows = 9;
  EXPECT_TRUE(port_->dispatch(0, hop).valid);
}

TEST_F(BrokenPeer, HeaderOfAnotherHopIsSeen) {
  const HopId hop{1, 1, 0, 0};
  *slot(hop).header = {0, 0, hop.epoch, hop.lane, /*step=*/7, hop.layer};
  EXPECT_STREQ(port_->dispatch(0, hop).problem, "the header names another hop than the flag");
}

TEST(InprocFabric, RefusesWhatCannotBe) {
  EXPECT_THROW(InprocFabric(small_shape(), 0, 1, {0}), std::invalid_argument);
  EXPECT_THROW(InprocFabric(small_shape(), 1, kMaxServers + 1, {0}), std::invalid_argument);
  EXPECT_THROW(InprocFabric(WindowShape{}, 1, 1, {0}), std::invalid_argument);
  const InprocFabric fabric(small_shape(), 1, 2, {0});
  EXPECT_THROW(static_cast<void>(fabric.ffn_port(2)), std::out_of_range);
  EXPECT_EQ(fabric.attention_port(0)->num_ffn_servers(), 2U);
  EXPECT_EQ(fabric.ffn_port(1)->num_attention_servers(), 1U);
}

}  // namespace
}  // namespace fastfd::transport
