#include <gmock/gmock.h>

#include "http/gateway_fixture.h"

namespace fastfd::gateway {
namespace {

using ::testing::HasSubstr;

GatewayOptions impatient_options() {
  GatewayOptions options;
  options.port = 0;
  options.max_unsent_bytes = 64 << 10;
  options.write_timeout = std::chrono::milliseconds(300);
  return options;
}

class DisconnectTest : public GatewayFixture {
 protected:
  DisconnectTest() : GatewayFixture(impatient_options()) {}

  static nlohmann::json endless(const nlohmann::json& fields) {
    nlohmann::json body = completion_body({{"ignore_eos", true}, {"max_tokens", 4000}});
    body.update(fields);
    return body;
  }
  void send(HttpClient& client, const nlohmann::json& fields) const {
    client.send_request("POST", "/v1/completions", endless(fields).dump());
  }
};

TEST_F(DisconnectTest, WhileQueued) {
  engine_.pause();
  for (const bool stream : {true, false}) {
    HttpClient client(port());
    send(client, {{"stream", stream}, {"n", 3}});
    ASSERT_TRUE(engine_.wait_running(3));
    client.close();
    EXPECT_TRUE(engine_.wait_running(0)) << "nothing is written yet, yet the client's end is seen";
  }
  EXPECT_EQ(engine_.num_aborted(), 6U);
}

TEST_F(DisconnectTest, WhileStreaming) {
  engine_.set_step_delay(std::chrono::milliseconds(1));
  for (const bool reset : {true, false}) {
    HttpClient client(port());
    send(client, {{"stream", true}});
    client.read_until("data: ");
    if (reset) {
      client.reset();
    } else {
      client.close();
    }
    EXPECT_TRUE(engine_.wait_running(0));
  }
  EXPECT_EQ(engine_.num_aborted(), 2U);
  EXPECT_THAT(exchange("GET", "/metrics").body, HasSubstr("fastfd_http_disconnects_total 2"));
}

TEST_F(DisconnectTest, BetweenTokensOfAPausedStream) {
  engine_.pause();
  HttpClient client(port());
  send(client, {{"stream", true}});
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  client.read_until("data: ");
  client.close();
  EXPECT_TRUE(engine_.wait_aborted(1)) << "noticed with no token to write";
}

TEST_F(DisconnectTest, WhileAWholeAnswerIsAwaited) {
  engine_.set_step_delay(std::chrono::milliseconds(1));
  HttpClient client(port());
  send(client, {{"stream", false}});
  ASSERT_TRUE(engine_.wait_running(1));
  client.reset();
  EXPECT_TRUE(engine_.wait_aborted(1));
}

TEST_F(DisconnectTest, AfterSendingAhead) {
  engine_.pause();
  HttpClient client(port());
  send(client, {{"stream", true}});
  ASSERT_TRUE(engine_.wait_running(1));
  client.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  client.close();
  EXPECT_TRUE(engine_.wait_aborted(1));
}

TEST_F(DisconnectTest, AClientThatOnlyEndsItsSendingIsAnswered) {
  for (const bool stream : {true, false}) {
    engine_.pause();
    HttpClient client(port());
    client.send_request("POST", "/v1/completions", completion_body({{"stream", stream}}).dump());
    client.close_sending();
    ASSERT_TRUE(engine_.wait_running(1));
    EXPECT_EQ(client.read_response().status, 102) << "sent to find out whether anybody reads";
    engine_.resume();
    const ClientResponse response = client.read_final_response();
    EXPECT_EQ(response.status, 200);
    if (stream) {
      EXPECT_EQ(streamed_text(response), "Hello, world!");
    } else {
      EXPECT_THAT(response.body, HasSubstr("Hello, world!"));
    }
    std::string rest;
    EXPECT_TRUE(client.read_to_end(rest)) << "no further request can come: the server closes";
    EXPECT_EQ(rest, "");
  }
  EXPECT_EQ(engine_.num_aborted(), 0U);
}

TEST_F(DisconnectTest, AStreamGoesOnWhenTheClientEndsItsSendingInTheMiddle) {
  engine_.pause();
  HttpClient client(port());
  client.send_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  client.read_until("data: ");
  client.close_sending();
  client.read_until(":\n\n");
  engine_.resume();
  client.read_until("[DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_EQ(engine_.num_aborted(), 0U);
}

TEST_F(DisconnectTest, PipelinedRequestsBeforeTheEndAreAnswered) {
  HttpClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.send_request("POST", "/v1/completions", completion_body().dump());
  }
  client.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  client.close_sending();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(client.read_final_response().body, HasSubstr("Hello, world!"));
  }
  EXPECT_EQ(client.read_final_response().body, R"({"status":"ok"})");
}

TEST_F(DisconnectTest, ALeaverBehindAnHttp10ProxyIsNoticed) {
  engine_.pause();
  HttpClient client(port());
  const std::string body = endless({{"stream", false}}).dump();
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  ASSERT_TRUE(engine_.wait_running(1));
  client.close_sending();
  EXPECT_TRUE(engine_.wait_aborted(1)) << "nothing can be sent to find out whether anybody reads";
}

TEST_F(DisconnectTest, AClientThatDoesNotReadIsGivenUp) {
  // Chunks with logprobs of 20 alternatives are large: the socket buffers fill soon.
  engine_.set_step_delay(std::chrono::milliseconds(1));
  HttpClient client(port(), 4096);
  send(client, {{"stream", true}, {"logprobs", 20}, {"n", 16}});
  EXPECT_TRUE(engine_.wait_aborted(16)) << "the response may not grow without bound";
  EXPECT_TRUE(engine_.wait_running(0));
  EXPECT_EQ(exchange("GET", "/health").status, 200);
}

TEST_F(DisconnectTest, AClientThatStopsReadingIsGivenUpInTime) {
  GatewayOptions options = impatient_options();
  options.max_unsent_bytes = std::size_t{1} << 30;  // never reached: only time can end it
  GatewayServer gateway(options);
  gateway.set_model(make_fake_model());
  gateway.set_engine(&engine_);
  engine_.set_step_delay(std::chrono::milliseconds(1));
  HttpClient client(gateway.port(), 4096);
  client.send_request("POST", "/v1/completions",
                      endless({{"stream", true}, {"logprobs", 20}, {"n", 16}}).dump());
  EXPECT_TRUE(engine_.wait_aborted(16));
  gateway.drain(std::chrono::steady_clock::now());
}

}  // namespace
}  // namespace fastfd::gateway
