#include <gmock/gmock.h>

#include "http/gateway_fixture.h"
#include "http/stream_swarm.h"

namespace fastfd::gateway {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kNumStreams = 1000;

class ConcurrencyTest : public GatewayFixture {
 protected:
  /// Text of a raw response whose chunks each hold whole events.
  static std::string text_of(const std::string& raw) {
    ClientResponse response;
    for (std::size_t at = raw.find("data: "); at != std::string::npos;
         at = raw.find("data: ", at + 1)) {
      response.body += raw.substr(at, raw.find("\n\n", at) + 2 - at);
    }
    return streamed_text(response);
  }
};

TEST_F(ConcurrencyTest, AThousandStreamsAtOnceEachGetTheirOwnText) {
  engine_.set_reply([](const Request& request) {
    return make_fake_text()->decode(request.prompt, true) + " says \xC3\xBC";
  });
  engine_.pause();
  StreamSwarm swarm(port(), kNumStreams);
  swarm.send("/v1/completions", [](std::size_t i) {
    return completion_body({{"prompt", "client " + std::to_string(i)}, {"stream", true}}).dump();
  });
  ASSERT_TRUE(engine_.wait_running(kNumStreams)) << "all of them wait together";
  EXPECT_THAT(exchange("GET", "/metrics").body,
              HasSubstr("fastfd_http_active_requests " + std::to_string(kNumStreams)));
  engine_.resume();
  swarm.read_all(/*keep=*/true);
  for (std::size_t i = 0; i < kNumStreams; ++i) {
    ASSERT_EQ(text_of(swarm.received(i)), "client " + std::to_string(i) + " says \xC3\xBC");
  }
  EXPECT_EQ(engine_.num_aborted(), 0U);
}

TEST_F(ConcurrencyTest, StreamsThatLeaveDontDisturbTheOthers) {
  engine_.set_step_delay(std::chrono::milliseconds(1));
  StreamSwarm staying(port(), 50);
  const auto body = [](std::size_t) {
    return completion_body({{"stream", true}, {"ignore_eos", true}, {"max_tokens", 300}}).dump();
  };
  staying.send("/v1/completions", body);
  for (int round = 0; round < 5; ++round) {
    StreamSwarm leaving(port(), 40);
    leaving.send("/v1/completions", body);
  }
  staying.read_all(/*keep=*/true);
  EXPECT_TRUE(engine_.wait_running(0));
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_THAT(staying.received(i), HasSubstr("\"finish_reason\":\"length\""));
  }
}

}  // namespace
}  // namespace fastfd::gateway
