#include <gmock/gmock.h>
#include <sys/resource.h>

#include <future>

#include "http/gateway_fixture.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LifecycleTest : public GatewayFixture {};

TEST(GatewayStartTest, APortInUseIsAnErrorThatNamesItAndTheRemedy) {
  GatewayOptions options;
  options.port = 0;
  const GatewayServer first(options);
  options.port = first.port();
  try {
    const GatewayServer second(options);
    FAIL() << "two gateways on one port";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(first.port())),
                                    HasSubstr("choose another port")));
  }
}

TEST(GatewayStartTest, AnAddressOfAnotherMachineIsAnError) {
  GatewayOptions options;
  options.port = 0;
  options.host = "192.0.2.1";  // TEST-NET-1
  EXPECT_THROW(GatewayServer{options}, std::runtime_error);
}

TEST(GatewayStartTest, TheOpenFileLimitIsRaised) {
  GatewayOptions options;
  options.port = 0;
  const GatewayServer gateway(options);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(GatewayStartTest, AnswersBeforeTheModelIsLoaded) {
  GatewayOptions options;
  options.port = 0;
  GatewayServer gateway(options);
  FakeEngine engine;
  engine.set_state({false, false, "waiting for FFN server 1"});
  HttpClient client(gateway.port());
  const std::string body = R"({"prompt":"a"})";
  EXPECT_EQ(client.exchange("GET", "/health").status, 200);
  EXPECT_EQ(client.exchange("GET", "/metrics").status, 200);
  for (const char* target : {"/ready", "/v1/models"}) {
    EXPECT_EQ(client.exchange("GET", target).status, 503) << target;
  }
  for (const char* target : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    const ClientResponse response = client.exchange("POST", target, body);
    EXPECT_EQ(response.status, 503) << target;
    EXPECT_TRUE(response.headers.contains("retry-after"));
    EXPECT_EQ(json::parse(response.body)["error"]["code"], "not_ready");
  }
  gateway.set_model(make_fake_model());
  gateway.set_engine(&engine);
  EXPECT_EQ(client.exchange("GET", "/v1/models").status, 200);
  EXPECT_THAT(client.exchange("GET", "/ready").body, HasSubstr("waiting for FFN server 1"));
  EXPECT_THAT(client.exchange("POST", "/v1/completions", body).body,
              HasSubstr("waiting for FFN server 1"));
  engine.set_state({true, false, ""});
  EXPECT_EQ(client.exchange("GET", "/ready").status, 200);
  EXPECT_EQ(client.exchange("POST", "/v1/completions", body).status, 200);
  gateway.drain(steady_clock::now());
}

TEST(GatewayStartTest, AModelMustBeComplete) {
  GatewayOptions options;
  options.port = 0;
  GatewayServer gateway(options);
  ServedModel model = make_fake_model();
  model.text = nullptr;
  EXPECT_THROW(gateway.set_model(model), std::invalid_argument);
}

TEST_F(LifecycleTest, DrainLetsStreamsFinishAndRefusesNewOnes) {
  engine_.pause();
  HttpClient streaming(port());
  streaming.send_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  streaming.read_head();
  HttpClient idle(port());
  EXPECT_EQ(idle.exchange("GET", "/health").status, 200);
  HttpClient half(port());
  half.send("GET /ready HTT");
  EXPECT_EQ(idle.exchange("GET", "/health").status, 200);  // so the half one has been read
  auto drained = std::async(std::launch::async, [this] {
    gateway_->drain(steady_clock::now() + std::chrono::seconds(20));
  });
  std::string rest;
  EXPECT_TRUE(idle.read_to_end(rest)) << "idle connections are closed at once";
  half.send("P/1.1\r\n\r\n");
  const ClientResponse refused = half.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("shutting down"));
  EXPECT_EQ(refused.headers.at("connection"), "close");
  HttpClient late(port());
  const ClientResponse late_answer =
      late.exchange("POST", "/v1/completions", completion_body().dump());
  EXPECT_EQ(late_answer.status, 503);
  EXPECT_TRUE(late_answer.headers.contains("retry-after"));
  EXPECT_EQ(late_answer.headers.at("connection"), "close");
  HttpClient silent(port());  // holds nothing up
  engine_.resume();
  EXPECT_THAT(streaming.read_until("0\r\n\r\n"), HasSubstr("[DONE]"));
  drained.get();
  EXPECT_THROW(HttpClient after(port()), std::runtime_error);
  EXPECT_TRUE(streaming.read_to_end(rest));
  EXPECT_EQ(engine_.num_aborted(), 0U);
}

TEST_F(LifecycleTest, DrainEndsWhatDoesNotFinishInTime) {
  engine_.pause();
  HttpClient streaming(port());
  streaming.send_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  streaming.read_head();
  HttpClient waiting(port());
  waiting.send_request("POST", "/v1/completions", completion_body().dump());
  ASSERT_TRUE(engine_.wait_running(2));
  gateway_->drain(steady_clock::now());
  EXPECT_EQ(engine_.num_aborted(), 2U);
  const std::string end = streaming.read_until("0\r\n\r\n");
  EXPECT_THAT(end, AllOf(HasSubstr("\"error\""), HasSubstr("shut down"), Not(HasSubstr("[DONE]"))));
  EXPECT_EQ(waiting.read_response().status, 503);
  gateway_->drain(steady_clock::now());  // idempotent
}

}  // namespace
}  // namespace fastfd::gateway
