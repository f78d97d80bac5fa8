// The control plane over real gRPC on the loopback: both ends in this process, everything else
// recorded.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fastfd/control_plane/control_client.h"
#include "fastfd/control_plane/control_server.h"
#include "fastfd/v1/cluster.grpc.pb.h"

namespace fastfd::control_plane {
namespace {

using testing::HasSubstr;

/// How long something that must happen may take; only ever waited out by a failing test.
constexpr std::chrono::seconds kPatience{20};

/// What happened, as lines of text that a test waits for.
class EventLog {
 public:
  void add(std::string line) {
    {
      const std::lock_guard lock(mutex_);
      lines_.push_back(std::move(line));
    }
    changed_.notify_all();
  }

  /// True once `count` lines contain `text`.
  bool wait_for(const std::string& text, std::ptrdiff_t count = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_locked(text) >= count; });
  }

  std::ptrdiff_t count(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return count_locked(text);
  }

 private:
  std::ptrdiff_t count_locked(const std::string& text) const {
    return std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// A coordinator that admits everybody unless told otherwise and does nothing by itself.
class RecordingCoordinator final : public MemberEvents {
 public:
  EventLog log;

  std::shared_ptr<MemberLink> link(SessionId session) {
    const std::lock_guard lock(mutex_);
    return links_.at(session);
  }
  void refuse_all(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    refusal_ = reason;
  }
  Registration last_registration() {
    const std::lock_guard lock(mutex_);
    return last_registration_;
  }
  LaneResult last_result() {
    const std::lock_guard lock(mutex_);
    return last_result_;
  }

  Result<SessionId> member_registered(const Registration& registration,
                                      std::shared_ptr<MemberLink> link) override {
    SessionId session = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!refusal_.empty()) {
        return Status(StatusCode::kInvalidArgument, refusal_);
      }
      session = links_.size() + 1;
      links_[session] = std::move(link);
      last_registration_ = registration;
    }
    log.add("registered " + member_name(registration.role, registration.rank));
    return session;
  }
  void member_ready(SessionId session, Epoch epoch) override { add("ready", session, epoch); }
  void stop_acked(SessionId session, Epoch next_epoch) override {
    add("stop acked", session, next_epoch);
  }
  void lane_result(SessionId session, LaneResult result) override {
    const auto step = result.step;
    {
      const std::lock_guard lock(mutex_);
      last_result_ = std::move(result);
    }
    add("result", session, step);
  }
  void heartbeat(SessionId session, const Heartbeat& heartbeat) override {
    add("heartbeat at step", session, heartbeat.progress[0].step);
  }
  void ffn_load(SessionId session, const FfnLoad& load) override {
    add("load", session, load.layers_run);
  }
  void member_failed(SessionId session, const std::string& message) override {
    log.add("session " + std::to_string(session) + ": failed: " + message);
  }
  void member_lost(SessionId session, const std::string& reason) override {
    log.add("session " + std::to_string(session) + ": lost: " + reason);
  }
  ClusterStatus cluster_status() const override {
    return {7, true, false, "all is well", {{Role::kFfn, 2, 99, 1234, "there", "serving"}}};
  }

 private:
  void add(const std::string& what, SessionId session, std::uint64_t value) {
    log.add("session " + std::to_string(session) + ": " + what + " " + std::to_string(value));
  }

  std::mutex mutex_;
  std::map<SessionId, std::shared_ptr<MemberLink>> links_;
  std::string refusal_;
  Registration last_registration_;
  LaneResult last_result_;
};

/// A server that records what it is told; `on_topology` can be made to block or fail.
class RecordingServer final : public ServerHandler {
 public:
  EventLog log;
  bool block_in_topology = false;
  Status topology_status;

  Status on_topology(const Topology& topology, std::stop_token abandoned) override {
    log.add("topology " + std::to_string(topology.epoch) + " of " +
            std::to_string(topology.peers.size()));
    if (block_in_topology) {
      std::mutex mutex;
      std::condition_variable_any changed;
      std::unique_lock lock(mutex);
      changed.wait(lock, abandoned, [] { return false; });
      log.add("topology abandoned");
    }
    return topology_status;
  }
  void on_go(Epoch epoch) override { log.add("go " + std::to_string(epoch)); }
  void on_plan(AttentionStepPlan plan) override {
    const auto step = plan.step;
    {
      const std::lock_guard lock(mutex_);
      attention_plan_ = std::move(plan);
    }
    log.add("attention plan " + std::to_string(step));
  }
  void on_plan(FfnStepPlan plan) override { log.add("ffn plan " + std::to_string(plan.step)); }
  void on_stop(Epoch next_epoch) override { log.add("stop " + std::to_string(next_epoch)); }
  void on_disconnect(const std::string& reason) override { log.add("disconnected: " + reason); }
  void on_shutdown() override { log.add("shutdown"); }
  void on_refused(const std::string& reason) override { log.add("refused: " + reason); }
  Heartbeat heartbeat() override {
    Heartbeat heartbeat;
    heartbeat.progress[0].step = 41;
    heartbeat.ffn_load = FfnLoad{0, 17, 0, 0.0, 0.0};
    return heartbeat;
  }

  AttentionStepPlan attention_plan() {
    const std::lock_guard lock(mutex_);
    return attention_plan_;
  }

 private:
  std::mutex mutex_;
  AttentionStepPlan attention_plan_;
};

/// A client with its thread.
class RunningClient {
 public:
  RunningClient(std::uint16_t port, RecordingServer& server, Registration registration = {},
                std::chrono::milliseconds heartbeat_interval = std::chrono::hours(1))
      : client({"127.0.0.1:" + std::to_string(port), heartbeat_interval,
                std::chrono::milliseconds(5000)},
               std::move(registration), server),
        thread_([this, &server] {
          client.run();
          server.log.add("run returned");
        }) {}
  ~RunningClient() {
    client.stop();
    thread_.join();
  }

  ControlClient client;

 private:
  std::thread thread_;
};

constexpr const char* kAnyPort = "127.0.0.1:0";

/// A port that was free a moment ago.
std::uint16_t free_port() {
  RecordingCoordinator nobody;
  return ControlServer(kAnyPort, nobody).port();
}

TEST(ControlStream, CarriesALifeInOrder) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  RunningClient running(control.port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered attention server 0"));
  const auto link = coordinator.link(1);

  link->begin({3, {{}, {}}, {}});
  ASSERT_TRUE(coordinator.log.wait_for("session 1: ready 3"));
  EXPECT_EQ(server.log.count("topology 3 of 2"), 1);
  link->go(3);
  AttentionStepPlan plan;
  plan.epoch = 3;
  plan.step = 8;
  plan.lanes.resize(1);
  plan.lanes[0].leaves = {4, 5};
  link->plan(plan);
  FfnStepPlan ffn_plan;
  ffn_plan.step = 9;
  link->plan(ffn_plan);
  ASSERT_TRUE(server.log.wait_for("ffn plan 9"));
  EXPECT_EQ(server.log.count("go 3"), 1);
  EXPECT_EQ(server.log.count("attention plan 8"), 1);
  EXPECT_EQ(server.attention_plan(), plan);

  LaneResult result;
  result.step = 8;
  result.tokens = {{4, 1, 17, 123, -0.5F, {{123, -0.5F}}}};
  running.client.send_result(result);
  ASSERT_TRUE(coordinator.log.wait_for("session 1: result 8"));
  EXPECT_EQ(coordinator.last_result(), result);
  running.client.send_failure(Status(StatusCode::kInternal, "a kernel failed"));
  ASSERT_TRUE(coordinator.log.wait_for("failed: internal error: a kernel failed"));

  link->stop(4, "a test");
  ASSERT_TRUE(coordinator.log.wait_for("session 1: stop acked 4"));
  EXPECT_EQ(server.log.count("stop 4"), 1);
  link->shutdown();
  ASSERT_TRUE(server.log.wait_for("run returned"));
  EXPECT_EQ(server.log.count("shutdown"), 1);
  EXPECT_EQ(server.log.count("disconnected"), 0);
  ASSERT_TRUE(coordinator.log.wait_for("session 1: lost"));
  link->stop(5, "a test");  // to nobody: dropped
}

TEST(ControlStream, ServersMayStartFirst) {
  const auto port = free_port();
  RecordingServer servers[2];
  RunningClient first(port, servers[0]);
  Registration registration;
  registration.role = Role::kFfn;
  RunningClient second(port, servers[1], registration);
  RecordingCoordinator coordinator;
  ControlServer control("127.0.0.1:" + std::to_string(port), coordinator);
  EXPECT_TRUE(coordinator.log.wait_for("registered attention server 0"));
  EXPECT_TRUE(coordinator.log.wait_for("registered FFN server 0"));
}

TEST(ControlStream, ServersRegisterAgainWithARestartedCoordinator) {
  const auto port = free_port();
  const auto address = "127.0.0.1:" + std::to_string(port);
  RecordingServer server;
  Registration registration;
  registration.incarnation = draw_incarnation();
  RunningClient running(port, server, registration);
  {
    RecordingCoordinator coordinator;
    ControlServer control(address, coordinator);
    ASSERT_TRUE(coordinator.log.wait_for("registered"));
    EXPECT_EQ(coordinator.last_registration().last_epoch, 0U);
    coordinator.link(1)->begin({12, {}, {}});
    ASSERT_TRUE(coordinator.log.wait_for("ready 12"));
  }
  ASSERT_TRUE(server.log.wait_for("disconnected"));
  RecordingCoordinator coordinator;
  ControlServer control(address, coordinator);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  EXPECT_EQ(coordinator.last_registration().incarnation, registration.incarnation);
  // The new coordinator must not take an epoch whose flags are in old windows.
  EXPECT_EQ(coordinator.last_registration().last_epoch, 12U);
}

TEST(ControlStream, ARefusedServerGetsTheReasonAndEnds) {
  RecordingCoordinator coordinator;
  coordinator.refuse_all("page size: the server has 32, the coordinator 16");
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  RunningClient running(control.port(), server);
  ASSERT_TRUE(server.log.wait_for("run returned"));
  EXPECT_EQ(server.log.count("refused: page size: the server has 32, the coordinator 16"), 1);
  EXPECT_EQ(server.log.count("disconnected"), 0);
}

TEST(ControlStream, AFencedServerGetsTheReasonAndDoesNotComeBack) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  RunningClient running(control.port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  coordinator.link(1)->refuse("replaced by a newer process");
  ASSERT_TRUE(server.log.wait_for("run returned"));
  EXPECT_EQ(server.log.count("refused: replaced by a newer process"), 1);
  ASSERT_TRUE(coordinator.log.wait_for("session 1: lost"));
  EXPECT_EQ(coordinator.log.count("registered"), 1);
}

TEST(ControlStream, AStopReachesAServerThatIsStillConnecting) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  server.block_in_topology = true;
  RunningClient running(control.port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  coordinator.link(1)->begin({1, {}, {}});
  ASSERT_TRUE(server.log.wait_for("topology 1"));
  coordinator.link(1)->stop(2, "a test");
  ASSERT_TRUE(coordinator.log.wait_for("stop acked 2"));
  EXPECT_EQ(server.log.count("topology abandoned"), 1);
  EXPECT_EQ(coordinator.log.count("ready"), 0);
}

TEST(ControlStream, ALostCoordinatorReachesAServerThatIsStillConnecting) {
  RecordingServer server;
  server.block_in_topology = true;
  RecordingCoordinator coordinator;
  auto control = std::make_unique<ControlServer>(kAnyPort, coordinator);
  RunningClient running(control->port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  coordinator.link(1)->begin({1, {}, {}});
  ASSERT_TRUE(server.log.wait_for("topology 1"));
  control.reset();
  ASSERT_TRUE(server.log.wait_for("disconnected"));
  EXPECT_EQ(server.log.count("topology abandoned"), 1);
}

TEST(ControlStream, AServerThatCannotConnectToItsPeersReportsAFailure) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  server.topology_status = Status(StatusCode::kUnavailable, "FFN server 0 has no window");
  RunningClient running(control.port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  coordinator.link(1)->begin({1, {}, {}});
  ASSERT_TRUE(coordinator.log.wait_for("failed: unavailable: FFN server 0 has no window"));
  EXPECT_EQ(coordinator.log.count("ready"), 0);
}

TEST(ControlStream, HeartbeatsCarryProgressAndLoad) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  RunningClient running(control.port(), server, {}, std::chrono::milliseconds(20));
  EXPECT_TRUE(coordinator.log.wait_for("session 1: heartbeat at step 41", 3));
  EXPECT_TRUE(coordinator.log.wait_for("session 1: load 17", 3));
}

TEST(ControlStream, PlansBeyondTheDefaultMessageLimitArrive) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  RecordingServer server;
  RunningClient running(control.port(), server);
  ASSERT_TRUE(coordinator.log.wait_for("registered"));
  AttentionStepPlan plan;
  plan.step = 1;
  plan.lanes.resize(1);
  plan.lanes[0].pieces.resize(1);
  plan.lanes[0].pieces[0].tokens.resize(4 << 20, 100000);  // 3 bytes each on the wire
  coordinator.link(1)->plan(plan);
  ASSERT_TRUE(server.log.wait_for("attention plan 1"));
  EXPECT_EQ(server.attention_plan(), plan);
}

TEST(ControlStream, StopEndsAClientThatFindsNoCoordinator) {
  RecordingServer server;
  { RunningClient running(free_port(), server); }
  EXPECT_EQ(server.log.count("run returned"), 1);
}

TEST(ControlServer, ATakenPortIsAnErrorThatSaysSo) {
  RecordingCoordinator coordinator;
  ControlServer first(kAnyPort, coordinator);
  const auto address = "127.0.0.1:" + std::to_string(first.port());
  try {
    ControlServer second(address, coordinator);
    FAIL() << "two coordinators share " << address;
  } catch (const ControlPlaneError& error) {
    EXPECT_THAT(error.what(), HasSubstr(address));
    EXPECT_THAT(error.what(), HasSubstr("the port is taken"));
    EXPECT_THAT(error.what(), HasSubstr("coordinator.control"));
  }
}

TEST(ControlServer, AnAddressOfAnotherHostIsAnErrorThatSaysSo) {
  RecordingCoordinator coordinator;
  try {
    ControlServer control("192.0.2.1:7070", coordinator);
    FAIL();
  } catch (const ControlPlaneError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no address of this host"));
  }
  EXPECT_THROW(ControlServer("no-port", coordinator), ControlPlaneError);
}

TEST(ControlServer, AStreamMustBeginWithARegistration) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  const auto stub = v1::Cluster::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(control.port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Join(&context);
  v1::ServerMessage message;
  message.mutable_ready()->set_epoch(1);
  ASSERT_TRUE(stream->Write(message));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_THAT(answer.refused().reason(), HasSubstr("must be a registration"));
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(coordinator.log.count("registered"), 0);
}

TEST(ControlServer, AServerThatBreaksTheProtocolIsPutOut) {
  RecordingCoordinator coordinator;
  ControlServer control(kAnyPort, coordinator);
  const auto stub = v1::Cluster::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(control.port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Join(&context);
  v1::ServerMessage message;
  message.mutable_register_()->set_role(v1::ROLE_FFN);
  ASSERT_TRUE(stream->Write(message));
  message.mutable_lane_result()->set_lane(kMaxLanes);
  ASSERT_TRUE(stream->Write(message));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_THAT(answer.refused().reason(), HasSubstr("broke the protocol"));
  // This client doesn't leave by itself: the coordinator ends the stream.
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(coordinator.log.wait_for("session 1: lost: it broke the protocol"));
}

TEST(FetchStatus, AsksTheCoordinatorOrSaysThatThereIsNone) {
  RecordingCoordinator coordinator;
  std::string address;
  {
    ControlServer control(kAnyPort, coordinator);
    address = "127.0.0.1:" + std::to_string(control.port());
    const auto status = fetch_status(address, kPatience);
    ASSERT_TRUE(status) << status.status().to_string();
    EXPECT_EQ(status->epoch, 7U);
    EXPECT_TRUE(status->ready);
    ASSERT_EQ(status->members.size(), 1U);
    EXPECT_EQ(status->members[0].role, Role::kFfn);
    EXPECT_EQ(status->members[0].state, "serving");
  }
  const auto status = fetch_status(address, std::chrono::milliseconds(50));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.status().message(), HasSubstr(address));
}

}  // namespace
}  // namespace fastfd::control_plane
