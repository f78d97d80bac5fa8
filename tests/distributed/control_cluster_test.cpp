// The engine and four servers over real gRPC: everything of a cluster but the arithmetic.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fastfd/control_plane/control_client.h"
#include "fastfd/control_plane/control_server.h"
#include "fastfd/coordinator/engine.h"
#include "unit/coordinator_fakes.h"

namespace fastfd::coordinator {
namespace {

using control_plane::ControlClient;
using control_plane::ControlServer;
using control_plane::Registration;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::PlanFollower;
using testing::TokenCollector;

EngineOptions engine_options() {
  EngineOptions options;
  options.scheduler.num_attention_servers = 2;
  options.scheduler.pages_per_server = 64;
  options.scheduler.max_sequences = 8;
  options.scheduler.max_batched_tokens = 64;
  options.scheduler.prefill_chunk = 16;
  options.scheduler.max_model_len = 512;
  options.scheduler.microbatches = 2;
  options.contract.num_attention_servers = 2;
  options.contract.num_ffn_servers = 2;
  options.contract.num_layers = 4;
  options.contract.num_pages = 64;
  options.contract.num_experts = 8;
  return options;
}

template <typename Condition>
bool wait_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

/// A server process with its client, in a thread.
class Server final : public control_plane::ServerHandler {
 public:
  Server(std::uint16_t port, Role role, ServerRank rank,
         control_plane::Contract contract = engine_options().contract)
      : rank_(rank),
        client_({"127.0.0.1:" + std::to_string(port), milliseconds(100), milliseconds(5000)},
                registration(role, rank, contract), *this),
        thread_([this] {
          client_.run();
          returned_ = true;
        }) {}
  ~Server() override {
    client_.stop();
    thread_.join();
  }

  Status on_topology(const control_plane::Topology& /*topology*/,
                     std::stop_token /*abandoned*/) override {
    books_ = {};
    return Status::ok();
  }
  void on_go(Epoch epoch) override { epoch_ = epoch; }
  void on_plan(AttentionStepPlan plan) override {
    if (slow) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    for (auto& result : books_.run(plan, rank_)) {
      client_.send_result(std::move(result));
    }
  }
  void on_plan(FfnStepPlan plan) override { last_ffn_step_ = plan.step; }
  void on_stop(Epoch /*next_epoch*/) override { ++stops_; }
  void on_disconnect(const std::string& /*reason*/) override { ++disconnects_; }
  void on_shutdown() override { shut_down_ = true; }
  void on_refused(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    refusal_ = reason;
  }
  control_plane::Heartbeat heartbeat() override { return {}; }

  bool wait_returned() {
    return wait_until([this] { return returned_.load(); });
  }
  std::string refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }
  Epoch epoch() const { return epoch_; }
  int stops() const { return stops_; }
  bool shut_down() const { return shut_down_; }
  StepId last_ffn_step() const { return last_ffn_step_; }

  std::atomic<bool> slow = false;  ///< so that a test can meet a running request

 private:
  static Registration registration(Role role, ServerRank rank,
                                   const control_plane::Contract& contract) {
    Registration registration;
    registration.role = role;
    registration.rank = rank;
    registration.incarnation = control_plane::draw_incarnation();
    registration.pid = 1;
    registration.contract = contract;
    return registration;
  }

  const ServerRank rank_;
  PlanFollower books_;  // the client's thread only
  std::atomic<Epoch> epoch_ = 0;
  std::atomic<StepId> last_ffn_step_ = 0;
  std::atomic<int> stops_ = 0;
  std::atomic<int> disconnects_ = 0;
  std::atomic<bool> shut_down_ = false;
  std::atomic<bool> returned_ = false;
  std::mutex mutex_;
  std::string refusal_;
  ControlClient client_;
  std::thread thread_;
};

/// A coordinator process.
struct Coordinator {
  explicit Coordinator(std::uint16_t port = 0, EngineOptions options = engine_options())
      : engine(std::move(options)), control("127.0.0.1:" + std::to_string(port), engine) {}

  RequestId submit(std::uint32_t prompt_len, std::uint32_t max_tokens) {
    Request request;
    request.id = engine.next_request_id();
    request.prompt.assign(prompt_len, static_cast<TokenId>(request.id));
    request.max_tokens = max_tokens;
    const RequestId id = request.id;
    const auto status = engine.submit(std::move(request), &sink);
    EXPECT_TRUE(status) << status.to_string();
    return id;
  }
  void expect_complete(RequestId id, std::uint32_t prompt_len, std::uint32_t max_tokens) {
    ASSERT_TRUE(sink.wait_finished(id));
    const auto stream = sink.stream(id);
    ASSERT_EQ(stream.finish, FinishReason::kLength) << stream.error;
    ASSERT_EQ(stream.tokens.size(), max_tokens);
    for (std::uint32_t i = 0; i < max_tokens; ++i) {
      ASSERT_EQ(stream.tokens[i], static_cast<TokenId>(prompt_len + i));
    }
  }
  void serve_some() {
    ASSERT_TRUE(wait_ready());
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < 6; ++i) {
      ids.push_back(submit(5 + 10 * i, 3 + 4 * i));
    }
    for (std::uint32_t i = 0; i < 6; ++i) {
      expect_complete(ids[i], 5 + 10 * i, 3 + 4 * i);
    }
  }
  bool wait_ready() {
    return wait_until([this] { return engine.state().ready; });
  }
  bool wait_epoch(Epoch epoch) {
    return wait_until([&] { return engine.cluster_status().epoch == epoch; });
  }

  TokenCollector sink;
  Engine engine;
  ControlServer control;
};

struct Servers {
  explicit Servers(std::uint16_t port) {
    for (ServerRank rank = 0; rank < 2; ++rank) {
      ffn.push_back(std::make_unique<Server>(port, Role::kFfn, rank));
      attention.push_back(std::make_unique<Server>(port, Role::kAttention, rank));
    }
  }
  void slow_down(bool slow) {
    for (const auto& server : attention) {
      server->slow = slow;
    }
  }
  std::vector<std::unique_ptr<Server>> attention;
  std::vector<std::unique_ptr<Server>> ffn;
};

std::uint16_t free_port() { return Coordinator().control.port(); }

TEST(ControlCluster, ServesWhateverStartsFirst) {
  {
    Coordinator coordinator;
    Servers servers(coordinator.control.port());
    coordinator.serve_some();
    EXPECT_EQ(servers.ffn[0]->epoch(), 1U);
    EXPECT_TRUE(wait_until([&] {
      return servers.ffn[0]->last_ffn_step() > 0 &&
             servers.ffn[0]->last_ffn_step() == servers.ffn[1]->last_ffn_step();
    }));
  }
  const auto port = free_port();
  Servers servers(port);
  Coordinator coordinator(port);
  coordinator.serve_some();
}

TEST(ControlCluster, ALostServerEndsItsRequestsAndItsRestartServesAgain) {
  Coordinator coordinator;
  const auto port = coordinator.control.port();
  Servers servers(port);
  ASSERT_TRUE(coordinator.wait_ready());
  servers.slow_down(true);
  const auto running = coordinator.submit(10, 400);
  ASSERT_TRUE(coordinator.sink.wait_tokens(running, 3));
  servers.ffn[1].reset();
  ASSERT_TRUE(coordinator.sink.wait_finished(running));
  const auto stream = coordinator.sink.stream(running);
  EXPECT_EQ(stream.finish, FinishReason::kError);
  EXPECT_EQ(stream.error, "FFN server 1 was lost: its stream closed");
  EXPECT_TRUE(wait_until([&] { return servers.ffn[0]->stops() == 1; }));
  EXPECT_TRUE(
      wait_until([&] { return coordinator.engine.state().detail == "waiting for FFN server 1"; }));
  servers.slow_down(false);
  servers.ffn[1] = std::make_unique<Server>(port, Role::kFfn, 1);
  coordinator.serve_some();
  EXPECT_EQ(servers.attention[0]->epoch(), 2U);
}

TEST(ControlCluster, ARestartedCoordinatorGetsItsServersBackInAHigherEpoch) {
  const auto port = free_port();
  Servers servers(port);
  {
    Coordinator coordinator(port);
    coordinator.serve_some();
    EXPECT_EQ(coordinator.engine.cluster_status().epoch, 1U);
  }
  Coordinator coordinator(port);
  coordinator.serve_some();
  EXPECT_EQ(coordinator.engine.cluster_status().epoch, 2U);
}

TEST(ControlCluster, ASecondStreamOfARankFencesTheFirst) {
  Coordinator coordinator;
  const auto port = coordinator.control.port();
  Servers servers(port);
  ASSERT_TRUE(coordinator.wait_ready());
  const auto first = std::move(servers.attention[1]);
  servers.attention[1] = std::make_unique<Server>(port, Role::kAttention, 1);
  ASSERT_TRUE(first->wait_returned());
  EXPECT_THAT(first->refusal(), HasSubstr("replaced by a newer stream"));
  ASSERT_TRUE(coordinator.wait_epoch(2));
  coordinator.serve_some();
  EXPECT_FALSE(servers.attention[1]->shut_down());
}

TEST(ControlCluster, AServerWithOtherLimitsIsRefusedAndTheClusterWaits) {
  Coordinator coordinator;
  auto contract = engine_options().contract;
  contract.max_lane_rows = 9;
  Server server(coordinator.control.port(), Role::kFfn, 0, contract);
  ASSERT_TRUE(server.wait_returned());
  EXPECT_THAT(server.refusal(), HasSubstr("rows of a lane: the server has 9, the coordinator 0"));
  EXPECT_THAT(coordinator.engine.state().detail, HasSubstr("FFN server 0"));
}

TEST(ControlCluster, ASilentServerIsLost) {
  auto options = engine_options();
  options.heartbeat_timeout = milliseconds(1500);
  std::atomic<std::uint32_t> fenced_pid = 0;
  options.fence = [&](Role /*role*/, ServerRank /*rank*/, std::uint32_t pid,
                      const std::string& /*process_key*/) { fenced_pid = pid; };
  Coordinator coordinator(0, options);
  // Registers like a server, and then never says anything more.
  class DeadLink final : public control_plane::MemberLink {
   public:
    void begin(const control_plane::Topology& /*topology*/) override {}
    void go(Epoch /*epoch*/) override {}
    void plan(AttentionStepPlan /*plan*/) override {}
    void plan(const FfnStepPlan& /*plan*/) override {}
    void stop(Epoch /*next_epoch*/, const std::string& /*reason*/) override {}
    void shutdown() override {}
    void refuse(const std::string& /*reason*/) override {}
  };
  Registration registration;
  registration.pid = 4711;
  registration.contract = options.contract;
  ASSERT_TRUE(coordinator.engine.member_registered(registration, std::make_shared<DeadLink>()));
  Server alive(coordinator.control.port(), Role::kFfn, 0);
  EXPECT_TRUE(wait_until([&] { return fenced_pid == 4711; }));
  EXPECT_TRUE(wait_until([&] {
    return coordinator.engine.state().detail ==
           "waiting for attention server 0, attention server 1, FFN server 1";
  }));
}

TEST(ControlCluster, ADrainEndsEveryServerCleanly) {
  Coordinator coordinator;
  Servers servers(coordinator.control.port());
  ASSERT_TRUE(coordinator.wait_ready());
  servers.slow_down(true);
  const auto id = coordinator.submit(10, 20);
  coordinator.engine.drain(kPatience);
  coordinator.expect_complete(id, 10, 20);
  ASSERT_TRUE(coordinator.engine.wait_drained(kPatience));
  for (const auto* pool : {&servers.attention, &servers.ffn}) {
    for (const auto& server : *pool) {
      EXPECT_TRUE(server->wait_returned());
      EXPECT_TRUE(server->shut_down());
      EXPECT_EQ(server->refusal(), "");
    }
  }
  EXPECT_EQ(coordinator.engine.cluster_status().epoch, 1U);  // to leave now is no loss
}

}  // namespace
}  // namespace fastfd::coordinator
