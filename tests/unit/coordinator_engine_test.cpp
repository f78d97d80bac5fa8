#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fastfd/coordinator/engine.h"
#include "unit/coordinator_fakes.h"

namespace fastfd::coordinator {
namespace {

using control_plane::MemberLink;
using control_plane::Registration;
using control_plane::SessionId;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::PlanFollower;
using testing::TokenCollector;

/// A server in this process. It answers everything at once, unless a test holds it back.
class FakeMember final : public MemberLink {
 public:
  FakeMember(Engine& engine, Role role, ServerRank rank)
      : engine_(engine), role_(role), rank_(rank) {}

  SessionId session() const { return session_; }
  void set_session(SessionId session) { session_ = session; }

  void begin(const control_plane::Topology& topology) override {
    {
      const std::lock_guard lock(mutex_);
      books_ = {};
      held_plans_.clear();
    }
    engine_.member_ready(session_, topology.epoch);
  }
  void go(Epoch epoch) override { note(epoch_, epoch); }
  void plan(AttentionStepPlan plan) override {
    EXPECT_EQ(role_, Role::kAttention);
    {
      const std::lock_guard lock(mutex_);
      if (holds_plans_) {
        held_plans_.push_back(std::move(plan));
      } else {
        report(books_.run(plan, rank_));
      }
    }
    changed_.notify_all();
  }
  void plan(const FfnStepPlan& plan) override {
    EXPECT_EQ(role_, Role::kFfn);
    note(last_ffn_step_, plan.step);
  }
  void stop(Epoch next_epoch, const std::string& /*reason*/) override {
    if (!ignores_stop) {
      engine_.stop_acked(session_, next_epoch);
    }
  }
  void shutdown() override { note(shut_down_, true); }
  void refuse(const std::string& reason) override { note(refusal_, reason); }

  std::atomic<bool> ignores_stop = false;

  void hold_plans(bool hold) {
    const std::lock_guard lock(mutex_);
    holds_plans_ = hold;
  }
  bool wait_held(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return held_plans_.size() >= count; });
  }
  std::size_t num_held() {
    const std::lock_guard lock(mutex_);
    return held_plans_.size();
  }
  /// Runs the oldest plan that was held back, without reporting.
  std::vector<LaneResult> run_held() {
    const std::lock_guard lock(mutex_);
    auto results = books_.run(held_plans_.front(), rank_);
    held_plans_.pop_front();
    return results;
  }
  void report(std::vector<LaneResult> results) {
    for (auto& result : results) {
      engine_.lane_result(session_, std::move(result));
    }
  }
  /// Ends holding and catches up. Results leave in order: plans wait for the mutex meanwhile.
  void release() {
    const std::lock_guard lock(mutex_);
    holds_plans_ = false;
    for (const auto& plan : held_plans_) {
      report(books_.run(plan, rank_));
    }
    held_plans_.clear();
  }

  Epoch epoch() { return read(epoch_); }
  StepId last_ffn_step() { return read(last_ffn_step_); }
  std::string refusal() { return read(refusal_); }
  bool wait_shut_down() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return shut_down_; });
  }

 private:
  template <typename T>
  void note(T& field, T value) {
    {
      const std::lock_guard lock(mutex_);
      field = std::move(value);
    }
    changed_.notify_all();
  }
  template <typename T>
  T read(const T& field) {
    const std::lock_guard lock(mutex_);
    return field;
  }

  Engine& engine_;
  const Role role_;
  const ServerRank rank_;
  std::atomic<SessionId> session_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  PlanFollower books_;
  std::deque<AttentionStepPlan> held_plans_;
  bool holds_plans_ = false;
  Epoch epoch_ = 0;
  StepId last_ffn_step_ = 0;
  bool shut_down_ = false;
  std::string refusal_;
};

class EngineTest : public ::testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.scheduler.num_attention_servers = 2;
    options.scheduler.pages_per_server = 64;
    options.scheduler.max_sequences = 4;
    options.scheduler.max_batched_tokens = 64;
    options.scheduler.prefill_chunk = 16;
    options.scheduler.max_model_len = 256;
    options.scheduler.max_queued_requests = 16;
    options.scheduler.microbatches = 2;
    options.contract.num_attention_servers = 2;
    options.contract.num_ffn_servers = 2;
    options.contract.num_layers = 4;
    options.contract.num_pages = 64;
    options.contract.num_experts = 8;
    options.heartbeat_timeout = milliseconds(0);
    options.stall_timeout = milliseconds(0);
    return options;
  }

  /// As options(), with KV pages that the attention servers register.
  static EngineOptions auto_pages() {
    EngineOptions result = options();
    result.scheduler.pages_per_server = 0;
    result.contract.num_pages = 0;
    result.contract.page_size = result.scheduler.page_size;
    result.contract.max_model_len = result.scheduler.max_model_len;
    return result;
  }

  void start(EngineOptions engine_options = options()) {
    contract_ = engine_options.contract;
    engine = std::make_unique<Engine>(std::move(engine_options));
  }

  std::shared_ptr<FakeMember> make_member(Role role, ServerRank rank) {
    return std::make_shared<FakeMember>(*engine, role, rank);
  }

  std::shared_ptr<FakeMember> join(Role role, ServerRank rank, std::uint32_t num_pages = 0) {
    auto member = make_member(role, rank);
    Registration registration;
    registration.role = role;
    registration.rank = rank;
    registration.incarnation = ++incarnation_;
    registration.pid = 100 + rank;
    registration.contract = contract_;
    registration.num_pages = num_pages;
    const auto gate = std::make_shared<GatedLink>(member);
    const auto session = engine->member_registered(registration, gate);
    EXPECT_TRUE(session) << session.status().to_string();
    member->set_session(*session);
    gate->open();
    return member;
  }

  void serve() {
    for (ServerRank rank = 0; rank < 2; ++rank) {
      attention.push_back(join(Role::kAttention, rank));
      ffn.push_back(join(Role::kFfn, rank));
    }
    wait_ready();
  }

  template <typename Condition>
  static bool wait_until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }

  void wait_ready() {
    ASSERT_TRUE(wait_until([this] { return engine->state().ready; })) << engine->state().detail;
  }

  bool wait_detail(const std::string& detail) {
    return wait_until([&] { return engine->state().detail == detail; });
  }

  Request request(std::uint32_t prompt_len, std::uint32_t max_tokens) {
    Request request;
    request.id = engine->next_request_id();
    request.prompt.resize(prompt_len);
    for (std::uint32_t i = 0; i < prompt_len; ++i) {
      request.prompt[i] = static_cast<TokenId>(request.id * 100 + i);
    }
    request.max_tokens = max_tokens;
    return request;
  }

  RequestId submit(std::uint32_t prompt_len, std::uint32_t max_tokens) {
    auto sequence = request(prompt_len, max_tokens);
    const RequestId id = sequence.id;
    const auto status = engine->submit(std::move(sequence), &sink);
    EXPECT_TRUE(status) << status.to_string();
    return id;
  }

  void expect_complete(RequestId id, std::uint32_t prompt_len, std::uint32_t max_tokens) {
    ASSERT_TRUE(sink.wait_finished(id)) << "request " << id;
    const auto stream = sink.stream(id);
    EXPECT_EQ(stream.finish, FinishReason::kLength);
    ASSERT_EQ(stream.tokens.size(), max_tokens);
    for (std::uint32_t i = 0; i < max_tokens; ++i) {
      ASSERT_EQ(stream.tokens[i], static_cast<TokenId>(prompt_len + i)) << "request " << id;
    }
  }

  double metric(const std::string& name) {
    for (const auto& metric : engine->metrics()) {
      if (metric.name == name) {
        return metric.value;
      }
    }
    ADD_FAILURE() << "no metric " << name;
    return -1;
  }

  bool wait_metric(const std::string& name, double value) {
    return wait_until([&] { return metric(name) == value; });
  }

  /// Both attention servers; which of them gets a sequence is the scheduler's choice.
  FakeMember& busy_server() {
    FakeMember* busy = attention[0].get();
    EXPECT_TRUE(wait_until([&] {
      return std::any_of(attention.begin(), attention.end(), [&](const auto& member) {
        busy = member.get();
        return member->num_held() > 0;
      });
    })) << "nobody got a plan";
    return *busy;
  }

  void hold_all(bool hold) {
    for (const auto& member : attention) {
      if (hold) {
        member->hold_plans(true);
      } else {
        member->release();
      }
    }
  }

  std::unique_ptr<Engine> engine;  // ended before the sink and the members are
  std::vector<std::shared_ptr<FakeMember>> attention;
  std::vector<std::shared_ptr<FakeMember>> ffn;
  TokenCollector sink;

  void TearDown() override { engine.reset(); }

 private:
  /// Blocks commands until the member knows its session, as a real stream does by itself.
  class GatedLink final : public MemberLink {
   public:
    explicit GatedLink(std::shared_ptr<FakeMember> member) : member_(std::move(member)) {}
    void open() {
      open_.store(true);
      open_.notify_all();
    }
    void begin(const control_plane::Topology& topology) override { pass().begin(topology); }
    void go(Epoch epoch) override { pass().go(epoch); }
    void plan(AttentionStepPlan plan) override { pass().plan(std::move(plan)); }
    void plan(const FfnStepPlan& plan) override { pass().plan(plan); }
    void stop(Epoch next_epoch, const std::string& reason) override {
      pass().stop(next_epoch, reason);
    }
    void shutdown() override { pass().shutdown(); }
    void refuse(const std::string& reason) override { pass().refuse(reason); }

   private:
    FakeMember& pass() {
      open_.wait(false);
      return *member_;
    }
    std::shared_ptr<FakeMember> member_;
    std::atomic<bool> open_ = false;
  };

  control_plane::Contract contract_;
  std::uint64_t incarnation_ = 0;
};

TEST_F(EngineTest, SaysWhatItWaitsForUntilAllServersAreThere) {
  start();
  EXPECT_FALSE(engine->state().ready);
  attention.push_back(join(Role::kAttention, 0));
  ffn.push_back(join(Role::kFfn, 1));
  ffn.push_back(join(Role::kFfn, 0));
  EXPECT_TRUE(wait_detail("waiting for attention server 1"));
  const auto status = engine->submit(request(4, 4), &sink);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("waiting for attention server 1"));
  attention.push_back(join(Role::kAttention, 1));
  wait_ready();
  EXPECT_EQ(attention[0]->epoch(), 1U);
}

TEST_F(EngineTest, EveryRequestGetsEveryTokenOnceAndInOrder) {
  start();
  serve();
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 12; ++i) {
    ids.push_back(submit(3 + 7 * i, 1 + 5 * i));
  }
  for (std::uint32_t i = 0; i < 12; ++i) {
    expect_complete(ids[i], 3 + 7 * i, 1 + 5 * i);
  }
  EXPECT_TRUE(wait_metric("fastfd_running_requests", 0));
  EXPECT_EQ(metric("fastfd_requests_finished_total"), 12);
  EXPECT_GT(metric("fastfd_server_compute_seconds_total"), 0);
  EXPECT_EQ(ffn[0]->last_ffn_step(), ffn[1]->last_ffn_step());
  EXPECT_EQ(static_cast<double>(ffn[0]->last_ffn_step()), metric("fastfd_steps_planned_total"));
}

TEST_F(EngineTest, TheFewestPagesOfAnyServerAreUsed) {
  start(auto_pages());
  attention.push_back(join(Role::kAttention, 0, 40));
  ffn.push_back(join(Role::kFfn, 0));
  ffn.push_back(join(Role::kFfn, 1));
  ASSERT_TRUE(wait_detail("waiting for attention server 1"));
  EXPECT_EQ(metric("fastfd_kv_free_pages"), 0);
  attention.push_back(join(Role::kAttention, 1, 30));
  wait_ready();
  EXPECT_EQ(metric("fastfd_kv_free_pages"), 30);
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 8; ++i) {
    ids.push_back(submit(20 + i, 100));  // 4 at once of 8 pages each: they preempt each other
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    expect_complete(ids[i], 20 + i, 100);
  }
}

TEST_F(EngineTest, AServerThatComesBackWithFewerPagesIsRefused) {
  start(auto_pages());
  attention.push_back(join(Role::kAttention, 0, 40));
  attention.push_back(join(Role::kAttention, 1, 30));
  ffn.push_back(join(Role::kFfn, 0));
  ffn.push_back(join(Role::kFfn, 1));
  wait_ready();
  engine->member_lost(attention[0]->session(), "its stream closed");
  ASSERT_TRUE(wait_detail("waiting for attention server 0"));
  const auto poorer = join(Role::kAttention, 0, 29);
  ASSERT_TRUE(wait_until([&] { return !poorer->refusal().empty(); }));
  EXPECT_EQ(poorer->refusal(),
            "KV pages: the server has room for 29, but the cluster has been using 30 of each "
            "attention server; end what else runs on its GPU, or restart the coordinator");
  EXPECT_EQ(engine->state().detail, "waiting for attention server 0");
  engine->member_lost(poorer->session(), "its stream closed");  // nobody's loss
  attention[0] = join(Role::kAttention, 0, 31);
  wait_ready();
  EXPECT_EQ(metric("fastfd_kv_free_pages"), 30);
  expect_complete(submit(8, 20), 8, 20);
}

TEST_F(EngineTest, AServerWithFewerPagesReplacesNobody) {
  start(auto_pages());
  attention.push_back(join(Role::kAttention, 0, 30));
  attention.push_back(join(Role::kAttention, 1, 30));
  ffn.push_back(join(Role::kFfn, 0));
  ffn.push_back(join(Role::kFfn, 1));
  wait_ready();
  const auto poorer = join(Role::kAttention, 1, 29);
  ASSERT_TRUE(wait_until([&] { return !poorer->refusal().empty(); }));
  EXPECT_TRUE(engine->state().ready);
  EXPECT_EQ(engine->cluster_status().epoch, 1U);
  expect_complete(submit(8, 20), 8, 20);
}

TEST_F(EngineTest, AServerWhosePagesHoldNoSequenceIsRefused) {
  start(auto_pages());
  Registration registration;
  registration.contract = auto_pages().contract;
  registration.num_pages = 15;  // of 16 tokens; max_model_len is 256
  const auto session = engine->member_registered(registration, make_member(Role::kAttention, 0));
  ASSERT_FALSE(session);
  EXPECT_THAT(session.status().message(), HasSubstr("the server has room for 15 of 16 tokens"));
}

TEST_F(EngineTest, ErrorsOfTheSchedulerReachTheCaller) {
  start();
  serve();
  EXPECT_EQ(engine->submit(request(300, 4), &sink).code(), StatusCode::kInvalidArgument);
  hold_all(true);
  Status status;
  for (int i = 0; i < 100 && status; ++i) {
    status = engine->submit(request(8, 100), &sink);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST_F(EngineTest, PlansAreOnlyPublishedAsFarAsCreditGoes) {
  auto engine_options = options();
  engine_options.scheduler.plan_ahead = 2;
  start(engine_options);
  serve();
  hold_all(true);
  const auto id = submit(4, 50);
  FakeMember& server = busy_server();
  ASSERT_TRUE(server.wait_held(3));
  // Whatever else happens, three uncommitted steps are the limit.
  for (int i = 0; i < 20; ++i) {
    engine->heartbeat(server.session(), {});
  }
  EXPECT_TRUE(wait_metric("fastfd_steps_planned_total", 3));
  for (double step = 4; step < 10; ++step) {
    auto results = server.run_held();
    EXPECT_EQ(server.num_held(), 2U);
    server.report(std::move(results));
    ASSERT_TRUE(server.wait_held(3));
    EXPECT_EQ(metric("fastfd_steps_planned_total"), step);
  }
  hold_all(false);
  expect_complete(id, 4, 50);
}

TEST_F(EngineTest, OneCallASinkBringsEverythingThatCameMeanwhile) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 50);
  FakeMember& server = busy_server();
  ASSERT_TRUE(server.wait_held(3));
  std::atomic<bool> blocked = false;
  std::atomic<bool> go_on = false;
  sink.set_hook([&] {
    blocked = true;
    blocked.notify_all();
    go_on.wait(false);
  });
  server.report(server.run_held());
  blocked.wait(false);  // the engine's thread is in the sink now
  ASSERT_TRUE(server.wait_held(3));
  server.report(server.run_held());
  server.report(server.run_held());
  server.report(server.run_held());
  go_on = true;
  go_on.notify_all();
  ASSERT_TRUE(sink.wait_tokens(id, 4));
  EXPECT_EQ(sink.num_calls(), 2U);
  EXPECT_EQ(sink.largest_batch(), 3U);
  sink.set_hook({});
  hold_all(false);
  expect_complete(id, 4, 50);
}

TEST_F(EngineTest, ALostServerEndsRunningRequestsByNameAndQueuedOnesStay) {
  start();
  serve();
  hold_all(true);
  std::vector<RequestId> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(submit(8, 200));
  }
  // The first may have used up all credit before the others came.
  ASSERT_TRUE(wait_until([&] {
    for (const auto& member : attention) {
      if (member->num_held() > 0) {
        member->report(member->run_held());
      }
    }
    return metric("fastfd_running_requests") == 4;
  }));
  const auto queued = submit(8, 20);
  engine->member_lost(ffn[1]->session(), "its stream closed");
  for (const RequestId id : running) {
    ASSERT_TRUE(sink.wait_finished(id));
    const auto stream = sink.stream(id);
    EXPECT_EQ(stream.finish, FinishReason::kError);
    EXPECT_EQ(stream.error, "FFN server 1 was lost: its stream closed");
  }
  EXPECT_EQ(sink.stream(queued).finish, FinishReason::kNone);
  EXPECT_EQ(engine->submit(request(4, 4), &sink).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(wait_detail("waiting for FFN server 1"));
  for (const auto& member : attention) {
    member->hold_plans(false);
  }
  ffn[1] = join(Role::kFfn, 1);
  wait_ready();
  EXPECT_EQ(ffn[0]->epoch(), 2U);
  expect_complete(queued, 8, 20);
  expect_complete(submit(8, 20), 8, 20);
}

TEST_F(EngineTest, LateReportsOfAnOldEpochOrSessionAreDropped) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 20);
  FakeMember& server = busy_server();
  auto late = server.run_held();
  const auto old_session = server.session();
  const auto rank = late.at(0).attention_rank;
  engine->member_failed(ffn[0]->session(), "a kernel failed");
  ASSERT_TRUE(sink.wait_finished(id));
  EXPECT_EQ(sink.stream(id).error, "FFN server 0 failed: a kernel failed");
  wait_ready();
  EXPECT_EQ(ffn[0]->epoch(), 2U);
  late.resize(1);
  server.report(late);  // same session, old epoch
  ASSERT_TRUE(wait_metric("fastfd_late_reports_total", 1));

  attention[rank]->hold_plans(false);
  attention[rank] = join(Role::kAttention, rank);  // fences the first
  ASSERT_TRUE(wait_until([&] { return engine->cluster_status().epoch == 3; }));
  wait_ready();
  late.at(0).epoch = 3;  // an old session that knows the epoch is still an old session
  engine->lane_result(old_session, late.at(0));
  ASSERT_TRUE(wait_metric("fastfd_late_reports_total", 2));
  engine->member_lost(old_session, "its stream closed");
  engine->ffn_load(old_session, {});
  ASSERT_TRUE(wait_metric("fastfd_late_reports_total", 3));
  for (const auto& member : attention) {
    member->hold_plans(false);
  }
  expect_complete(submit(4, 20), 4, 20);
  EXPECT_EQ(engine->cluster_status().epoch, 3U);
}

TEST_F(EngineTest, AResultInAnotherServersNameIsDropped) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 20);
  FakeMember& server = busy_server();
  auto results = server.run_held();
  const auto rank = results.at(0).attention_rank;
  engine->lane_result(attention[1 - rank]->session(), results.at(0));
  ASSERT_TRUE(wait_metric("fastfd_late_reports_total", 1));
  server.report(std::move(results));
  hold_all(false);
  expect_complete(id, 4, 20);
}

TEST_F(EngineTest, AnAbortedRequestGetsNoMoreEventsAndTheEpochStays) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 100);
  const auto other = submit(4, 10);
  FakeMember& server = busy_server();
  server.report(server.run_held());
  engine->abort(id);
  engine->abort(id);
  engine->abort(12345);
  hold_all(false);
  expect_complete(other, 4, 10);
  ASSERT_TRUE(wait_metric("fastfd_running_requests", 0));
  EXPECT_EQ(sink.stream(id).finish, FinishReason::kNone);
  EXPECT_LE(sink.stream(id).tokens.size(), 1U);
  EXPECT_EQ(engine->cluster_status().epoch, 1U);
}

TEST_F(EngineTest, ADrainFinishesWhatRunsAndShutsTheServersDown) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 20);
  engine->drain(kPatience);
  EXPECT_EQ(engine->submit(request(4, 4), &sink).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(engine->state().draining);
  EXPECT_FALSE(engine->state().ready);
  EXPECT_FALSE(engine->wait_drained(milliseconds(0)));
  Registration late;
  late.contract = options().contract;
  EXPECT_FALSE(engine->member_registered(late, make_member(Role::kAttention, 0)));
  hold_all(false);
  expect_complete(id, 4, 20);
  ASSERT_TRUE(engine->wait_drained(kPatience));
  for (const auto& member : {attention[0], attention[1], ffn[0], ffn[1]}) {
    EXPECT_TRUE(member->wait_shut_down());
  }
}

TEST_F(EngineTest, ADrainThatRunsOutOfTimeAbortsTheRest) {
  start();
  serve();
  hold_all(true);
  const auto id = submit(4, 20);
  engine->drain(milliseconds(1));
  ASSERT_TRUE(engine->wait_drained(kPatience));
  const auto stream = sink.stream(id);
  EXPECT_EQ(stream.finish, FinishReason::kError);
  EXPECT_THAT(stream.error, HasSubstr("shutting down"));
  EXPECT_TRUE(ffn[0]->wait_shut_down());
}

TEST_F(EngineTest, AServerThatDoesNotStopIsFenced) {
  std::promise<std::tuple<Role, ServerRank, std::uint32_t>> fenced;
  auto engine_options = options();
  engine_options.stop_timeout = milliseconds(20);
  engine_options.fence = [&](Role role, ServerRank rank, std::uint32_t pid, const std::string&) {
    fenced.set_value({role, rank, pid});
  };
  start(engine_options);
  serve();
  attention[1]->ignores_stop = true;
  engine->member_lost(ffn[0]->session(), "its stream closed");
  auto future = fenced.get_future();
  ASSERT_EQ(future.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(future.get(), std::tuple(Role::kAttention, ServerRank{1}, 101U));
  EXPECT_THAT(attention[1]->refusal(), HasSubstr("did not acknowledge"));
  ffn[0] = join(Role::kFfn, 0);
  attention[1] = join(Role::kAttention, 1);
  wait_ready();
  expect_complete(submit(4, 20), 4, 20);
}

TEST_F(EngineTest, AServerOfAnotherClusterIsRefused) {
  start();
  Registration registration;
  registration.contract = options().contract;
  registration.contract.page_size = 99;
  const auto session = engine->member_registered(registration, make_member(Role::kAttention, 0));
  ASSERT_FALSE(session);
  EXPECT_THAT(session.status().message(), HasSubstr("page size: the server has 99"));
}

TEST_F(EngineTest, ManyClientsAtOnce) {
  auto engine_options = options();
  engine_options.scheduler.max_queued_requests = 1000;
  start(engine_options);
  serve();
  std::vector<std::thread> clients;
  for (std::uint32_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (std::uint32_t i = 0; i < 25; ++i) {
        const std::uint32_t prompt_len = 1 + (i * 7 + c) % 40;
        const auto id = submit(prompt_len, 5);
        if (i % 5 == 4) {
          engine->abort(id);
        } else if (i % 5 == 0) {
          expect_complete(id, prompt_len, 5);
        }
      }
    });
  }
  for (auto& client : clients) {
    client.join();
  }
  EXPECT_TRUE(wait_metric("fastfd_running_requests", 0));
  EXPECT_TRUE(wait_metric("fastfd_queued_requests", 0));
}

}  // namespace
}  // namespace fastfd::coordinator
