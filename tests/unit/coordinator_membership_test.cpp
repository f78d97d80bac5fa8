#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/membership.h"

namespace fastfd::coordinator {
namespace {

using control_plane::Heartbeat;
using control_plane::MemberLink;
using control_plane::Registration;
using control_plane::SessionId;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Phase = Membership::Phase;

/// Writes down what it is told.
class RecordingLink final : public MemberLink {
 public:
  std::vector<std::string> commands;
  control_plane::Topology topology;

  void begin(const control_plane::Topology& new_topology) override {
    topology = new_topology;
    add("begin", new_topology.epoch);
  }
  void go(Epoch epoch) override { add("go", epoch); }
  void plan(AttentionStepPlan plan) override { add("attention plan", plan.step); }
  void plan(const FfnStepPlan& plan) override { add("ffn plan", plan.step); }
  void stop(Epoch next_epoch, const std::string& /*reason*/) override { add("stop", next_epoch); }
  void shutdown() override { commands.emplace_back("shutdown"); }
  void refuse(const std::string& reason) override { commands.push_back("refuse: " + reason); }

  std::vector<std::string> take() { return std::exchange(commands, {}); }

 private:
  void add(const std::string& what, std::uint64_t value) {
    commands.push_back(what + " " + std::to_string(value));
  }
};

StepPlan plan_of_lane(LaneId lane, StepId step) {
  StepPlan plan;
  plan.step = step;
  AttentionStepPlan attention_plan;
  attention_plan.lanes.resize(1);
  attention_plan.lanes[0].lane = lane;
  attention_plan.lanes[0].participants = 1;
  plan.attention.emplace_back(0, attention_plan);
  return plan;
}

/// One attention server, two FFN servers, and a clock of its own.
class MembershipTest : public testing::Test {
 protected:
  static constexpr SessionId kAttention = 1;
  static constexpr SessionId kFfn0 = 2;
  static constexpr SessionId kFfn1 = 3;

  static MembershipOptions options() {
    MembershipOptions options;
    options.contract.num_attention_servers = 1;
    options.contract.num_ffn_servers = 2;
    options.contract.num_layers = 4;
    options.contract.num_experts = 16;
    options.placement_version = 5;
    options.heartbeat_timeout = milliseconds(5000);
    options.stop_timeout = milliseconds(2000);
    options.stall_timeout = milliseconds(10000);
    return options;
  }

  std::shared_ptr<RecordingLink> join(SessionId session, Role role, ServerRank rank,
                                      Epoch last_epoch = 0) {
    auto link = std::make_shared<RecordingLink>();
    Registration registration;
    registration.role = role;
    registration.rank = rank;
    registration.incarnation = 100 + session;
    registration.pid = static_cast<std::uint32_t>(1000 + session);
    registration.last_epoch = last_epoch;
    registration.data_plane_address = "window " + std::to_string(session);
    membership.registered(session, registration, link, now);
    return link;
  }

  void form() {
    attention = join(kAttention, Role::kAttention, 0);
    ffn0 = join(kFfn0, Role::kFfn, 0);
    ffn1 = join(kFfn1, Role::kFfn, 1);
  }

  void serve() {
    form();
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      membership.ready(session, membership.epoch(), now);
    }
    ASSERT_EQ(membership.phase(), Phase::kServing);
    for (const auto& link : {attention, ffn0, ffn1}) {
      link->take();
    }
  }

  void beat(SessionId session, const ServerProgress& progress = {}) {
    Heartbeat heartbeat;
    heartbeat.progress = progress;
    membership.heartbeat(session, heartbeat, in_flight, now);
  }

  void pass(milliseconds time) { now += time; }

  SteadyTime now{std::chrono::hours(1)};
  Membership membership{options()};
  InFlight in_flight;
  std::shared_ptr<RecordingLink> attention;
  std::shared_ptr<RecordingLink> ffn0;
  std::shared_ptr<RecordingLink> ffn1;
};

TEST_F(MembershipTest, FormsInAnyOrderAndNamesWhoIsMissing) {
  EXPECT_EQ(membership.detail(), "waiting for attention server 0, FFN server 0, FFN server 1");
  ffn1 = join(kFfn1, Role::kFfn, 1);
  attention = join(kAttention, Role::kAttention, 0);
  EXPECT_EQ(membership.detail(), "waiting for FFN server 0");
  EXPECT_THAT(attention->commands, IsEmpty());
  ffn0 = join(kFfn0, Role::kFfn, 0);

  EXPECT_EQ(membership.phase(), Phase::kConnecting);
  for (const auto& link : {attention, ffn0, ffn1}) {
    EXPECT_THAT(link->take(), ElementsAre("begin 1"));
  }
  const auto& topology = attention->topology;
  ASSERT_EQ(topology.peers.size(), 3U);
  EXPECT_EQ(topology.peers[0], (control_plane::Peer{Role::kAttention, 0, 101, "window 1"}));
  EXPECT_EQ(topology.peers[2], (control_plane::Peer{Role::kFfn, 1, 103, "window 3"}));
  EXPECT_EQ(topology.placement, (control_plane::PlacementSpec{16, 2, 1, 5}));

  membership.ready(kFfn1, 1, now);
  membership.ready(kAttention, 1, now);
  EXPECT_EQ(membership.detail(), "waiting for FFN server 0 to connect to its peers");
  EXPECT_THAT(attention->commands, IsEmpty());
  membership.ready(kFfn0, 1, now);
  EXPECT_EQ(membership.phase(), Phase::kServing);
  EXPECT_EQ(membership.detail(), "");
  for (const auto& link : {attention, ffn0, ffn1}) {
    EXPECT_THAT(link->take(), ElementsAre("go 1"));
  }
}

TEST_F(MembershipTest, ALossStopsTheSurvivorsAndTheClusterFormsAgain) {
  serve();
  membership.lost(kFfn1, "its stream closed", now);
  EXPECT_EQ(membership.phase(), Phase::kStopping);
  EXPECT_EQ(membership.epoch(), 2U);
  EXPECT_EQ(membership.end_reason(), "FFN server 1 was lost: its stream closed");
  EXPECT_THAT(attention->take(), ElementsAre("stop 2"));
  EXPECT_THAT(ffn0->take(), ElementsAre("stop 2"));
  EXPECT_THAT(ffn1->take(), IsEmpty());
  EXPECT_EQ(membership.link(Role::kFfn, 1), nullptr);

  membership.stop_acked(kAttention, 2, now);
  EXPECT_EQ(membership.detail(), "waiting for FFN server 0 to leave the last epoch");
  // The restarted server may be faster than the survivors' acknowledgements.
  ffn1 = join(9, Role::kFfn, 1);
  EXPECT_EQ(membership.phase(), Phase::kStopping);
  EXPECT_THAT(ffn1->commands, IsEmpty());
  membership.stop_acked(kFfn0, 2, now);
  EXPECT_EQ(membership.phase(), Phase::kConnecting);
  for (const auto& link : {attention, ffn0, ffn1}) {
    EXPECT_THAT(link->take(), ElementsAre("begin 2"));
  }
  EXPECT_EQ(ffn0->topology.peers[2].incarnation, 109U);
}

TEST_F(MembershipTest, NobodyGoesWhileASurvivorMayStillWrite) {
  serve();
  membership.lost(kFfn1, "its stream closed", now);
  join(9, Role::kFfn, 1);
  membership.stop_acked(kAttention, 2, now);
  EXPECT_THAT(ffn0->take(), ElementsAre("stop 2"));
  // An acknowledgement of another epoch, or of somebody who is gone, proves nothing.
  membership.stop_acked(kFfn0, 1, now);
  membership.stop_acked(kFfn1, 2, now);
  EXPECT_EQ(membership.phase(), Phase::kStopping);
}

TEST_F(MembershipTest, ASurvivorThatDoesNotAcknowledgeIsFenced) {
  serve();
  membership.lost(kFfn1, "its stream closed", now);
  membership.stop_acked(kAttention, 2, now);
  pass(milliseconds(1999));
  beat(kFfn0);  // alive, but that is no acknowledgement
  beat(kAttention);
  membership.check_deadlines(now);
  EXPECT_THAT(membership.take_fences(), IsEmpty());
  pass(milliseconds(1));
  membership.check_deadlines(now);
  const auto fences = membership.take_fences();
  ASSERT_EQ(fences.size(), 1U);
  EXPECT_EQ(fences[0].role, Role::kFfn);
  EXPECT_EQ(fences[0].rank, 0U);
  EXPECT_EQ(fences[0].pid, 1002U);
  EXPECT_THAT(ffn0->commands.back(), HasSubstr("refuse: it did not acknowledge"));
  EXPECT_EQ(membership.phase(), Phase::kForming);
  EXPECT_EQ(membership.detail(), "waiting for FFN server 0, FFN server 1");
  EXPECT_EQ(membership.epoch(), 2U);
}

TEST_F(MembershipTest, ASecondStreamFencesTheFirst) {
  serve();
  const auto old_link = ffn0;
  ffn0 = join(9, Role::kFfn, 0);
  ASSERT_EQ(old_link->commands.size(), 1U);
  EXPECT_THAT(old_link->commands[0], HasSubstr("refuse: it was replaced by a newer stream"));
  EXPECT_THAT(old_link->commands[0], HasSubstr("pid 1009"));
  EXPECT_EQ(membership.epoch(), 2U);
  EXPECT_THAT(attention->take(), ElementsAre("stop 2"));
  // Whatever the first stream still says is not of this membership.
  EXPECT_EQ(membership.identify(kFfn0), std::nullopt);
  membership.lost(kFfn0, "its stream closed", now);
  membership.failed(kFfn0, "late", now);
  EXPECT_EQ(membership.epoch(), 2U);
  EXPECT_NE(membership.link(Role::kFfn, 0), nullptr);
  membership.stop_acked(kAttention, 2, now);
  membership.stop_acked(kFfn1, 2, now);
  EXPECT_EQ(membership.phase(), Phase::kConnecting);
}

TEST_F(MembershipTest, ASecondStreamBeforeTheClusterIsCompleteJustReplacesTheFirst) {
  const auto old_link = join(kFfn0, Role::kFfn, 0);
  join(9, Role::kFfn, 0);
  EXPECT_EQ(old_link->commands.size(), 1U);
  EXPECT_EQ(membership.phase(), Phase::kForming);
  EXPECT_EQ(membership.epoch(), 1U);
  EXPECT_EQ(membership.detail(), "waiting for attention server 0, FFN server 1");
}

TEST_F(MembershipTest, ALossWhileConnectingStartsOver) {
  form();
  membership.ready(kAttention, 1, now);
  membership.lost(kFfn0, "its stream closed", now);
  EXPECT_EQ(membership.epoch(), 2U);
  EXPECT_THAT(attention->take(), ElementsAre("begin 1", "stop 2"));
  // Ready for an epoch that is over.
  membership.ready(kFfn1, 1, now);
  membership.stop_acked(kAttention, 2, now);
  membership.stop_acked(kFfn1, 2, now);
  EXPECT_EQ(membership.phase(), Phase::kForming);
  join(9, Role::kFfn, 0);
  membership.ready(kAttention, 1, now);  // late once more
  EXPECT_EQ(membership.detail(),
            "waiting for attention server 0, FFN server 0, FFN server 1 to connect to its peers");
}

TEST_F(MembershipTest, TwoLossesAtOnceAreOneEpochChange) {
  serve();
  membership.lost(kFfn0, "its stream closed", now);
  membership.lost(kFfn1, "its stream closed", now);
  EXPECT_EQ(membership.epoch(), 2U);
  EXPECT_EQ(membership.phase(), Phase::kStopping);
  membership.stop_acked(kAttention, 2, now);
  EXPECT_EQ(membership.phase(), Phase::kForming);
}

TEST_F(MembershipTest, SilenceIsALossAndFences) {
  serve();
  pass(milliseconds(4000));
  beat(kAttention);
  beat(kFfn1);
  EXPECT_EQ(membership.next_deadline(), now + milliseconds(1000));
  pass(milliseconds(1000));
  membership.check_deadlines(now);
  EXPECT_EQ(membership.end_reason(), "FFN server 0 was lost: it was silent for 5000 ms");
  ASSERT_EQ(membership.take_fences().size(), 1U);
  EXPECT_THAT(attention->take(), ElementsAre("stop 2"));
}

TEST_F(MembershipTest, ACoordinatorThatSleptItselfBlamesNobody) {
  serve();
  pass(std::chrono::seconds(60));
  membership.notice_own_pause(now);
  membership.check_deadlines(now);
  EXPECT_EQ(membership.phase(), Phase::kServing);
  pass(milliseconds(5000));  // but now they had their time
  membership.notice_own_pause(now);
  membership.check_deadlines(now);
  EXPECT_EQ(membership.phase(), Phase::kForming);
}

// All were stopped together in the middle of a step, as a suspended machine is.
TEST_F(MembershipTest, APauseOfTheWholeClusterIsNoStall) {
  serve();
  in_flight.published(plan_of_lane(0, 1), now);
  const auto beats = [&] {
    beat(kAttention, {{{1, 2, true}, {}, {}, {}}});
    beat(kFfn0, {{{1, 2, false}, {}, {}, {}}});
    beat(kFfn1, {{{1, 3, false}, {}, {}, {}}});
  };
  beats();
  pass(milliseconds(14000));
  membership.notice_own_pause(now);
  beats();  // what was on its way says that nobody has moved
  membership.check_deadlines(now);
  EXPECT_EQ(membership.phase(), Phase::kServing);
  EXPECT_THAT(membership.take_fences(), IsEmpty());
}

TEST_F(MembershipTest, AFailureEndsTheEpochButKeepsTheServer) {
  serve();
  membership.failed(kAttention, "a plan makes no sense", now);
  EXPECT_EQ(membership.end_reason(), "attention server 0 failed: a plan makes no sense");
  for (const auto& link : {attention, ffn0, ffn1}) {
    EXPECT_THAT(link->take(), ElementsAre("stop 2"));
  }
  for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
    membership.stop_acked(session, 2, now);
  }
  EXPECT_EQ(membership.phase(), Phase::kConnecting);
  EXPECT_THAT(membership.take_fences(), IsEmpty());
}

TEST_F(MembershipTest, AServerThatFailsAgainAndAgainIsFenced) {
  serve();
  for (Epoch epoch = 1; epoch <= 3; ++epoch) {
    EXPECT_THAT(membership.take_fences(), IsEmpty());
    membership.failed(kAttention, "no memory", now);
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      membership.stop_acked(session, epoch + 1, now);
    }
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      membership.ready(session, epoch + 1, now);
    }
  }
  ASSERT_EQ(membership.take_fences().size(), 1U);
  EXPECT_THAT(attention->commands.back(), HasSubstr("failed 3 times in a row: no memory"));
  EXPECT_EQ(membership.detail(), "waiting for attention server 0");
}

TEST_F(MembershipTest, ACommitForgivesFailures) {
  serve();
  for (Epoch epoch = 1; epoch <= 5; ++epoch) {
    membership.failed(kAttention, "once", now);
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      membership.stop_acked(session, epoch + 1, now);
    }
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      membership.ready(session, epoch + 1, now);
    }
    ASSERT_EQ(membership.phase(), Phase::kServing);
    membership.committed();
  }
  EXPECT_THAT(membership.take_fences(), IsEmpty());
}

TEST_F(MembershipTest, TheEpochIsHigherThanAnyThatAServerHasSeen) {
  join(kAttention, Role::kAttention, 0, 17);  // of a coordinator that is gone
  join(kFfn0, Role::kFfn, 0, 3);
  join(kFfn1, Role::kFfn, 1, 0);
  EXPECT_EQ(membership.epoch(), 18U);
}

TEST_F(MembershipTest, AHungServerIsExpelledAndTheNextTimeoutIsLonger) {
  serve();
  in_flight.published(plan_of_lane(0, 1), now);
  const ServerProgress waiting{{{1, 2, true}, {}, {}, {}}};
  const ServerProgress computing{{{1, 2, false}, {}, {}, {}}};
  const ServerProgress done{{{1, 3, false}, {}, {}, {}}};
  const auto beats = [&] {
    beat(kAttention, waiting);
    beat(kFfn0, computing);
    beat(kFfn1, done);
  };
  beats();
  pass(milliseconds(9999));
  beats();
  EXPECT_EQ(membership.phase(), Phase::kServing);
  pass(milliseconds(1));
  beats();
  EXPECT_THAT(membership.end_reason(), HasSubstr("FFN server 0 was lost: FFN server 0 (lane 0 at "
                                                 "step 1 layer 2) has not moved for 10000 ms"));
  EXPECT_EQ(membership.take_fences().size(), 1U);

  // Slow machine, not hung: the second time it gets twice as long.
  in_flight.clear();
  membership.stop_acked(kAttention, 2, now);
  membership.stop_acked(kFfn1, 2, now);
  join(9, Role::kFfn, 0);
  for (const SessionId session : {kAttention, SessionId{9}, kFfn1}) {
    membership.ready(session, 2, now);
  }
  ASSERT_EQ(membership.phase(), Phase::kServing);
  in_flight.published(plan_of_lane(0, 2), now);
  beat(9, computing);
  pass(milliseconds(19999));
  beat(kAttention, waiting);
  beat(9, computing);
  EXPECT_EQ(membership.phase(), Phase::kServing);
  pass(milliseconds(1));
  beat(9, computing);
  EXPECT_EQ(membership.phase(), Phase::kStopping);
}

TEST_F(MembershipTest, AnIdleClusterIsNotHung) {
  serve();
  beat(kFfn0, {{{1, 3, false}, {}, {}, {}}});
  for (int i = 0; i < 100; ++i) {
    pass(milliseconds(1000));
    for (const SessionId session : {kAttention, kFfn0, kFfn1}) {
      beat(session, {{{1, 3, false}, {}, {}, {}}});
    }
    membership.check_deadlines(now);
  }
  EXPECT_EQ(membership.phase(), Phase::kServing);
}

}  // namespace
}  // namespace fastfd::coordinator
