#include <gmock/gmock.h>

#include "http/gateway_fixture.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

GatewayOptions small_limits() {
  GatewayOptions options;
  options.port = 0;
  options.max_body_bytes = 100'000;
  options.max_header_bytes = 8192;
  options.idle_timeout = std::chrono::milliseconds(300);
  options.request_timeout = std::chrono::milliseconds(200);
  return options;
}

class ProtocolTest : public GatewayFixture {};

class LimitsTest : public GatewayFixture {
 protected:
  LimitsTest() : GatewayFixture(small_limits()) {}
};

TEST_F(ProtocolTest, SimpleEndpoints) {
  EXPECT_EQ(exchange("GET", "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(exchange("GET", "/ready?verbose=1").body, R"({"status":"ready"})");
  const json models = json::parse(exchange("GET", "/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], kFakeModelName);
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(json::parse(exchange("GET", "/v1/models/fake%2Dmodel").body)["id"], kFakeModelName);
  const ClientResponse missing = exchange("GET", "/v1/models/other");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(json::parse(missing.body)["error"]["code"], "model_not_found");
  EXPECT_THAT(exchange("GET", "/metrics").headers.at("content-type"), StartsWith("text/plain"));
}

TEST_F(ProtocolTest, TokenizeAndBack) {
  const json tokens = json::parse(exchange("POST", "/tokenize", R"({"prompt":"Hi"})").body);
  EXPECT_EQ(tokens, json::parse(R"({"count":2,"max_model_len":4096,"tokens":[72,105]})"));
  const json chat = json::parse(
      exchange("POST", "/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})").body);
  EXPECT_EQ(chat["count"], 20);
  EXPECT_EQ(exchange("POST", "/detokenize", R"({"tokens":[72,105,256]})").body,
            R"({"prompt":"Hi<eos>"})");
  EXPECT_EQ(exchange("POST", "/tokenize", "{}").status, 400);
  EXPECT_EQ(exchange("POST", "/detokenize", R"({"tokens":[264]})").status, 400);
  EXPECT_EQ(exchange("POST", "/detokenize", R"({"tokens":[1],"model":"x"})").status, 404);
}

TEST_F(ProtocolTest, UnknownPathsAndMethods) {
  const ClientResponse unknown = exchange("GET", "/v2/nothing");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(json::parse(unknown.body)["error"]["message"].get<std::string>(),
              HasSubstr("/v2/nothing"));
  const ClientResponse wrong = exchange("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(exchange("DELETE", "/health").headers.at("allow"), "GET, HEAD, OPTIONS");
  const ClientResponse options = exchange("OPTIONS", "/v1/completions");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_FALSE(options.headers.contains("content-length"));
  EXPECT_EQ(exchange("OPTIONS", "*").status, 204);
}

TEST_F(ProtocolTest, TargetsMayNameTheServer) {
  EXPECT_EQ(exchange("GET", "http://example.org/health").body, R"({"status":"ok"})");
  EXPECT_EQ(exchange("GET", "HTTP://[::1]:8000/ready?x=http://y/").body, R"({"status":"ready"})");
  EXPECT_EQ(exchange("POST", "https://u@h/tokenize", R"({"prompt":"Hi"})").status, 200);
  EXPECT_EQ(exchange("GET", "http://example.org").status, 404);
  EXPECT_EQ(exchange("GET", "http:///health").status, 404) << "no host";
  EXPECT_EQ(exchange("GET", "/http://example.org/health").status, 404);
}

TEST_F(ProtocolTest, HeadHasTheLengthAndNoBody) {
  HttpClient client(port());
  const ClientResponse head = client.exchange("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "15");
  EXPECT_EQ(client.exchange("HEAD", "/v1/completions").status, 405);
  EXPECT_EQ(client.exchange("GET", "/health").body, R"({"status":"ok"})");
}

TEST_F(ProtocolTest, KeepAliveServesManyRequests) {
  HttpClient client(port());
  for (int i = 0; i < 5; ++i) {
    client.send_request("POST", "/v1/chat/completions", chat_body({{"stream", i % 2 == 0}}).dump());
    EXPECT_THAT(client.read_response().body, HasSubstr("stop"));
  }
}

TEST_F(ProtocolTest, PipelinedRequestsAreAnsweredInOrder) {
  HttpClient client(port());
  const std::string body = completion_body({{"stream", true}}).dump();
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  const std::string get = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  client.send(get + post + get + post + get);
  EXPECT_EQ(client.read_response().body, R"({"status":"ok"})");
  EXPECT_EQ(streamed_text(client.read_response()), "Hello, world!");
  EXPECT_EQ(client.read_response().body, R"({"status":"ok"})");
  EXPECT_EQ(streamed_text(client.read_response()), "Hello, world!");
  EXPECT_EQ(client.read_response().body, R"({"status":"ok"})");
}

TEST_F(ProtocolTest, ARequestSentDuringAStreamWaits) {
  engine_.pause();
  HttpClient client(port());
  client.send_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  client.read_head();
  client.send("GET /hea");  // and the rest after the stream
  engine_.resume();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("[DONE]"));
  client.send("lth HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_response().body, R"({"status":"ok"})");
  EXPECT_EQ(engine_.num_aborted(), 0U);
}

TEST_F(ProtocolTest, ConnectionCloseAndHttp10) {
  HttpClient closing(port());
  closing.send_request("GET", "/health", {}, "Connection: close\r\n");
  const ClientResponse response = closing.read_response();
  EXPECT_EQ(response.headers.at("connection"), "close");
  std::string rest;
  EXPECT_TRUE(closing.read_to_end(rest));
  EXPECT_EQ(rest, "");
  HttpClient old(port());
  const std::string body = completion_body({{"stream", true}}).dump();
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body);
  const ClientResponse stream = old.read_response();
  EXPECT_FALSE(stream.headers.contains("transfer-encoding"));
  EXPECT_EQ(streamed_text(stream), "Hello, world!");
}

TEST_F(ProtocolTest, ExpectContinueIsAnswered) {
  HttpClient client(port());
  const std::string body = completion_body().dump();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 100);
  client.send(body);
  EXPECT_EQ(client.read_response().status, 200);
  HttpClient other(port());
  other.send("GET /health HTTP/1.1\r\nHost: t\r\nExpect: miracles\r\n\r\n");
  EXPECT_EQ(other.read_response().status, 417);
}

TEST_F(ProtocolTest, ChunkedRequestBodiesAreRead) {
  HttpClient client(port());
  client.send(
      "POST /detokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\n{\"tok\r\nd\r\nens\":[72, 7]}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "{\"prompt\":\"H\\u0007\"}");
}

TEST_F(ProtocolTest, BytewiseRequestsAreRead) {
  HttpClient client(port());
  const std::string request =
      "POST /detokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\n\r\n{\"tokens\":[72]}";
  for (const char byte : request) {
    client.send(std::string_view(&byte, 1));
  }
  EXPECT_EQ(client.read_response().body, R"({"prompt":"H"})");
}

class MalformedHttp : public ProtocolTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(MalformedHttp, Gets400AndIsClosed) {
  HttpClient client(port());
  client.send(GetParam());
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body)["error"]["code"], "bad_http");
  std::string rest;
  EXPECT_TRUE(client.read_to_end(rest));
  EXPECT_EQ(exchange("GET", "/health").status, 200);
}

INSTANTIATE_TEST_SUITE_P(
    Bytes, MalformedHttp,
    ::testing::Values("hello\r\n\r\n", "GET /health\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n",
                      "GET /health HTTP/1.1\r\nno colon\r\n\r\n",
                      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client hello\r\n\r\n",
                      "POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                      "POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
                      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"));

TEST_F(LimitsTest, LargeBodiesAre413EvenBeforeTheyAreSent) {
  HttpClient announced(port());
  announced.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
      "Content-Length: 100001\r\n\r\n");
  EXPECT_EQ(announced.read_response().status, 413);
  HttpClient chunked(port());
  chunked.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "20000\r\n" +
      std::string(0x20000, 'x'));
  const ClientResponse response = chunked.read_response();
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(response.body, HasSubstr("100000 bytes"));
  HttpClient sent(port());
  sent.send_request("POST", "/tokenize", std::string(400'000, 'x'));
  EXPECT_EQ(sent.read_response().status, 413) << "the client sees the answer, not a reset";
}

TEST_F(LimitsTest, LargeHeadersAre431) {
  HttpClient client(port());
  client.send("GET /health HTTP/1.1\r\nX: " + std::string(20'000, 'x'));
  EXPECT_EQ(client.read_response().status, 431);
}

TEST_F(LimitsTest, SlowRequestsAre408) {
  HttpClient head(port());
  head.send("GET /health HT");
  EXPECT_EQ(head.read_response().status, 408);
  HttpClient body(port());
  body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.read_response().status, 408);
}

TEST_F(LimitsTest, IdleConnectionsAreClosedSilently) {
  HttpClient client(port());
  EXPECT_EQ(client.exchange("GET", "/health").status, 200);
  std::string rest;
  EXPECT_TRUE(client.read_to_end(rest));
  EXPECT_EQ(rest, "");
}

TEST_F(LimitsTest, TimeoutsDontTouchAStreamThatWaitsForTokens) {
  engine_.pause();
  HttpClient client(port());
  client.send_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  // Another connection runs into the idle timeout meanwhile: it has passed for this one too.
  HttpClient idle(port());
  std::string rest;
  EXPECT_TRUE(idle.read_to_end(rest));
  engine_.resume();
  EXPECT_EQ(streamed_text(client.read_response()), "Hello, world!");
}

}  // namespace
}  // namespace fastfd::gateway
