#include <gmock/gmock.h>

#include <algorithm>

#include "http/gateway_fixture.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class GenerationTest : public GatewayFixture {
 protected:
  static std::vector<json> chunks(const ClientResponse& response) {
    std::vector<json> parsed;
    for (const std::string& event : response.events()) {
      if (event != "[DONE]") {
        parsed.push_back(json::parse(event));
      }
    }
    return parsed;
  }
};

TEST_F(GenerationTest, ChatAnswersWithOpenAisSchema) {
  const ClientResponse response = chat({{"seed", 5}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const json body = json::parse(response.body);
  EXPECT_THAT(body["id"].get<std::string>(), ::testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_GT(body["created"].get<std::int64_t>(), 1'600'000'000);
  EXPECT_EQ(body["model"], kFakeModelName);
  ASSERT_EQ(body["choices"].size(), 1U);
  EXPECT_EQ(body["choices"][0], json::parse(R"({"index":0,"message":{"role":"assistant",
      "content":"Hello, world!","refusal":null},"logprobs":null,"finish_reason":"stop"})"));
  // "user: Hi\nassistant: " in bytes; the answer's 13 and the end-of-sequence token.
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens":20,"completion_tokens":14,
      "total_tokens":34,"prompt_tokens_details":{"cached_tokens":10}})"));
  EXPECT_EQ(engine_.submitted().at(0).sampling.seed, 5U);
}

TEST_F(GenerationTest, ChatStreamsRoleTextFinishUsageDone) {
  const ClientResponse response =
      chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("text/event-stream"));
  EXPECT_EQ(response.events().back(), "[DONE]");
  const std::vector<json> parsed = chunks(response);
  ASSERT_EQ(parsed.size(), 1 + 13 + 1 + 1U);
  for (const json& chunk : parsed) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], parsed[0]["id"]);
    EXPECT_TRUE(chunk.contains("usage"));
  }
  EXPECT_EQ(parsed[0]["choices"][0],
            json::parse(R"({"index":0,"delta":{"role":"assistant","content":"","refusal":null},
            "logprobs":null,"finish_reason":null})"));
  EXPECT_EQ(parsed[1]["choices"][0],
            json::parse(R"({"index":0,"delta":{"content":"H"},"logprobs":null,
            "finish_reason":null})"));
  EXPECT_TRUE(parsed[1]["usage"].is_null());
  EXPECT_EQ(parsed[14]["choices"][0],
            json::parse(R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"})"));
  EXPECT_TRUE(parsed[15]["choices"].empty());
  EXPECT_EQ(parsed[15]["usage"]["completion_tokens"], 14);
  EXPECT_EQ(parsed[15]["usage"]["prompt_tokens_details"]["cached_tokens"], 10);
  EXPECT_EQ(streamed_text(response), "Hello, world!");
}

TEST_F(GenerationTest, StreamWithoutUsageHasNoUsageField) {
  for (const json& chunk : chunks(chat({{"stream", true}}))) {
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk["choices"].size(), 1U);
  }
}

TEST_F(GenerationTest, CompletionsAnswerAndStream) {
  const json body = json::parse(complete().body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_THAT(body["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  EXPECT_EQ(body["choices"][0], json::parse(R"({"index":0,"text":"Hello, world!","logprobs":null,
      "finish_reason":"stop"})"));
  const ClientResponse streamed = complete({{"stream", true}});
  EXPECT_EQ(chunks(streamed)[0]["choices"][0],
            json::parse(R"({"index":0,"text":"H","logprobs":null,"finish_reason":null})"));
  EXPECT_EQ(chunks(streamed)[0]["object"], "text_completion");
  EXPECT_EQ(streamed_text(streamed), "Hello, world!");
}

TEST_F(GenerationTest, LengthEndsAnAnswer) {
  const json body = json::parse(complete({{"max_tokens", 5}}).body);
  EXPECT_EQ(body["choices"][0]["text"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  const ClientResponse streamed = complete({{"max_tokens", 5}, {"stream", true}});
  EXPECT_EQ(chunks(streamed).back()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(streamed_text(streamed), "Hello");
}

TEST_F(GenerationTest, NoEventHoldsHalfACharacter) {
  const std::string text =
      "na\xC3\xAFve \xE2\x82\xAC"
      "5 \xF0\x9F\x8C\x8D\xF0\x9F\x8F\xBD!";
  engine_.set_reply(text);
  const ClientResponse response = chat({{"stream", true}});
  EXPECT_EQ(streamed_text(response), text);  // json::parse refuses what is not UTF-8
  // The answer ends in the middle of the globe: its two bytes become a replacement character.
  const json cut = json::parse(complete({{"max_tokens", 13}}).body);
  EXPECT_EQ(cut["choices"][0]["text"],
            "na\xC3\xAFve \xE2\x82\xAC"
            "5 \xEF\xBF\xBD");
}

TEST_F(GenerationTest, StopStringsAcrossTokensEndTheSequence) {
  engine_.set_reply("one two three four");
  engine_.set_step_delay(std::chrono::milliseconds(2));
  for (const bool stream : {false, true}) {
    const std::size_t aborted = engine_.num_aborted();
    const ClientResponse response =
        complete({{"stop", {"zzz", " thr"}}, {"stream", stream}, {"ignore_eos", true}});
    if (stream) {
      EXPECT_EQ(streamed_text(response), "one two");
      EXPECT_EQ(chunks(response).back()["choices"][0]["finish_reason"], "stop");
    } else {
      const json body = json::parse(response.body);
      EXPECT_EQ(body["choices"][0]["text"], "one two");
      EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
      EXPECT_EQ(body["usage"]["completion_tokens"], 11);  // "one two thr": nothing past the end
    }
    EXPECT_TRUE(engine_.wait_aborted(aborted + 1)) << "the engine still generates";
  }
}

TEST_F(GenerationTest, HeldBackTextComesWithTheEnd) {
  engine_.set_reply("abc st");
  EXPECT_EQ(streamed_text(complete({{"stop", "stop"}, {"stream", true}})), "abc st");
}

TEST_F(GenerationTest, MinTokensDelaysStops) {
  engine_.set_reply("xyz");
  const json body =
      json::parse(complete({{"min_tokens", 5}, {"stop", "y"}, {"ignore_eos", true}}).body);
  EXPECT_EQ(body["choices"][0]["text"], "xyzxyzx");
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
}

TEST_F(GenerationTest, IgnoreEosHidesSpecialTokensAndGoesOn) {
  engine_.set_reply("ab");
  const json body = json::parse(complete({{"ignore_eos", true}, {"max_tokens", 5}}).body);
  EXPECT_EQ(body["choices"][0]["text"], "ababa");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST_F(GenerationTest, ManyChoicesAndPrompts) {
  engine_.set_reply([](const Request& request) {
    return std::string(1, static_cast<char>(request.prompt.at(0))) +
           std::to_string(request.sampling.seed);
  });
  const json body =
      json::parse(complete({{"prompt", {"a", "bc"}}, {"n", 3}, {"seed", 11}, {"best_of", 3}}).body);
  ASSERT_EQ(body["choices"].size(), 6U);
  EXPECT_EQ(body["choices"][0]["text"], "a11");
  EXPECT_EQ(body["choices"][3]["text"], "b11");
  std::set<std::string> seeds;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    seeds.insert(body["choices"][i]["text"].get<std::string>().substr(1));
  }
  EXPECT_EQ(seeds.size(), 3U) << "choices of a prompt differ, prompts don't";
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  const ClientResponse streamed = complete({{"n", 2}, {"seed", 11}, {"stream", true}});
  EXPECT_EQ(streamed_text(streamed, 0), "O11");
  EXPECT_GT(streamed_text(streamed, 1).size(), 3U);
  EXPECT_EQ(streamed.events().back(), "[DONE]");
}

TEST_F(GenerationTest, SeedsDifferWhenNotGiven) {
  static_cast<void>(complete());
  static_cast<void>(complete());
  const auto submitted = engine_.submitted();
  EXPECT_NE(submitted.at(0).sampling.seed, submitted.at(1).sampling.seed);
}

TEST_F(GenerationTest, EchoPrecedesTheText) {
  EXPECT_EQ(json::parse(complete({{"echo", true}}).body)["choices"][0]["text"],
            "OnceHello, world!");
  EXPECT_EQ(streamed_text(complete({{"echo", true}, {"stream", true}, {"prompt", {72, 105}}})),
            "HiHello, world!");
}

TEST_F(GenerationTest, ChatLogprobs) {
  engine_.set_reply("\xC3\xA9");
  const json body =
      json::parse(chat({{"logprobs", true}, {"top_logprobs", 2}, {"max_tokens", 2}}).body);
  const json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["token"], "bytes:\\xc3");
  EXPECT_EQ(content[0]["bytes"], json::array({0xC3}));
  EXPECT_FLOAT_EQ(content[0]["logprob"].get<float>(), -0.5F);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_FLOAT_EQ(content[0]["top_logprobs"][1]["logprob"].get<float>(), -1.5F);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "\xC3\xA9");
}

TEST_F(GenerationTest, CompletionLogprobsAndOneEventAToken) {
  engine_.set_reply("abc");
  const json body = json::parse(complete({{"logprobs", 1}}).body);
  EXPECT_EQ(body["choices"][0]["logprobs"],
            json::parse(R"({"tokens":["a","b","c"],"token_logprobs":[-0.5,-0.5,-0.5],
            "top_logprobs":[{"a":-0.5},{"b":-0.5},{"c":-0.5}],"text_offset":[0,1,2]})"));
  const auto parsed = chunks(complete({{"logprobs", 0}, {"stream", true}, {"stop", "abcd"}}));
  ASSERT_EQ(parsed.size(), 4U);
  EXPECT_EQ(parsed[1]["choices"][0]["logprobs"]["tokens"], json::array({"b"}));
  EXPECT_EQ(parsed[1]["choices"][0]["logprobs"]["text_offset"], json::array({1}));
  EXPECT_EQ(parsed[1]["choices"][0]["text"], "");  // held back: "abc" may become a stop string
  EXPECT_EQ(parsed[3]["choices"][0]["text"], "abc");
}

TEST_F(GenerationTest, AnErrorInMidStreamIsAnEvent) {
  engine_.fail_after(3);
  engine_.pause();
  HttpClient client(port());
  client.send_request("POST", "/v1/chat/completions", chat_body({{"stream", true}}).dump());
  ASSERT_TRUE(engine_.wait_running(1));
  engine_.step();
  client.read_until("\"H\"");
  engine_.resume();
  ClientResponse response;
  response.body = client.read_until("0\r\n\r\n");
  response.body.erase(0, response.body.find("data: "));
  const auto events = response.events();
  const json error = json::parse(events.back())["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("attention server 1 was lost"));
  EXPECT_EQ(error["code"], "engine_error");
  EXPECT_EQ(std::count(events.begin(), events.end(), "[DONE]"), 0);
}

TEST_F(GenerationTest, AnErrorBeforeTheAnswerIsAStatus) {
  engine_.fail_after(3);
  const ClientResponse response = chat({{"n", 2}});
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("attention server 1 was lost"));
  EXPECT_TRUE(engine_.wait_running(0));
}

TEST_F(GenerationTest, AFullQueueIs429AndLeavesNothingBehind) {
  engine_.pause();
  engine_.set_max_requests(2);
  const ClientResponse response = chat({{"n", 3}});
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(json::parse(response.body)["error"]["code"], "queue_full");
  EXPECT_TRUE(engine_.wait_running(0));
  engine_.resume();
  EXPECT_EQ(chat().status, 200);
}

TEST_F(GenerationTest, LongPromptsAreReadBesideTheGatewayThread) {
  const std::string prompt(3000, 'x');
  json prompts = json::array();
  for (int i = 0; i < 30; ++i) {
    prompts.push_back(prompt);
  }
  const ClientResponse response = complete({{"prompt", prompts}, {"max_tokens", 1}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(json::parse(response.body)["usage"]["prompt_tokens"], 90'000);
  const ClientResponse refused = complete({{"prompt", std::string(50'000, 'x')}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "context_length_exceeded");
}

TEST_F(GenerationTest, MetricsCountWhatHappened) {
  static_cast<void>(chat());
  static_cast<void>(complete({{"stream", true}}));
  static_cast<void>(chat({{"temperature", 9}}));
  const std::string text = exchange("GET", "/metrics").body;
  for (const char* line :
       {"fastfd_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 1",
        "fastfd_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"400\"} 1",
        "fastfd_http_responses_total{endpoint=\"/v1/completions\",status=\"200\"} 1",
        "fastfd_gateway_generated_tokens_total 28", "fastfd_gateway_prompt_tokens_total 24",
        "fastfd_gateway_finished_sequences_total{reason=\"stop\"} 2",
        "fastfd_gateway_time_to_first_token_seconds_count 2",
        "fastfd_gateway_inter_token_latency_seconds_count 26",
        "fastfd_gateway_request_latency_seconds_count 2",
        "# HELP fastfd_running_requests Requests that generate",
        "# TYPE fastfd_running_requests gauge", "fastfd_running_requests{server=\"0\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

class ReasoningTest : public GatewayFixture {
 protected:
  static ServedModel thinking_model() {
    ServedModel model = make_fake_model();
    model.reasoning = Reasoning::kTagged;
    return model;
  }
  ReasoningTest() : GatewayFixture(test_options(), thinking_model()) {
    engine_.set_reply("<think>\nhm\n</think>\n\nYes.");
  }

  json message(const json& fields = json::object()) const {
    return json::parse(chat(fields).body)["choices"][0]["message"];
  }
  /// Reasoning and content of a stream, in this order or the test fails.
  std::pair<std::string, std::string> streamed(json fields) const {
    fields["stream"] = true;
    std::pair<std::string, std::string> result;
    for (const std::string& event : chat(fields).events()) {
      if (event == "[DONE]") {
        break;
      }
      const json delta = json::parse(event)["choices"][0]["delta"];
      EXPECT_TRUE(result.second.empty() || !delta.contains("reasoning_content"));
      result.first += delta.value("reasoning_content", "");
      result.second += delta.value("content", "");
    }
    return result;
  }
};

TEST_F(ReasoningTest, IsApartFromTheContent) {
  EXPECT_EQ(message(), json::parse(R"({"role":"assistant","reasoning_content":"\nhm\n",
      "content":"\n\nYes.","refusal":null})"));
  EXPECT_EQ(streamed({}), std::pair(std::string("\nhm\n"), std::string("\n\nYes.")));
  engine_.set_reply("Yes.");
  EXPECT_EQ(message(), json::parse(R"({"role":"assistant","reasoning_content":null,
      "content":"Yes.","refusal":null})"));
  EXPECT_EQ(streamed({}), std::pair(std::string(), std::string("Yes.")));
}

TEST_F(ReasoningTest, AnswerThatEndsWhileThinkingHasNoContent) {
  EXPECT_EQ(message({{"max_tokens", 10}}),
            json::parse(R"({"role":"assistant","reasoning_content":"\nhm","content":null,
      "refusal":null})"));
  EXPECT_EQ(streamed({{"max_tokens", 10}}), std::pair(std::string("\nhm"), std::string()));
  EXPECT_EQ(streamed({{"stop", "hm"}}), std::pair(std::string("\n"), std::string()));
}

TEST_F(ReasoningTest, PromptThatOpensOrClosesTheTagDecides) {
  const auto begun = [](const std::string& content) {
    return json{{"continue_final_message", true},
                {"messages", {{{"role", "assistant"}, {"content", content}}}}};
  };
  engine_.set_reply("hm</think>Yes.");
  EXPECT_EQ(message(begun("<think> so ")).at("reasoning_content"), "hm");
  EXPECT_EQ(message(begun("<think> so </think> I")).at("content"), "hm</think>Yes.");
  EXPECT_EQ(message(begun("So")).at("content"), "hm</think>Yes.");
  // What a user writes decides nothing.
  EXPECT_EQ(message({{"messages", {{{"role", "user"}, {"content", "<think>"}}}}}).at("content"),
            "hm</think>Yes.");
  engine_.set_reply("<think>hm</think>Yes.");
  EXPECT_EQ(message({{"include_reasoning", false}}),
            json::parse(R"({"role":"assistant","content":"Yes.","refusal":null})"));
}

TEST_F(ReasoningTest, CompletionsAreText) {
  EXPECT_EQ(json::parse(complete().body)["choices"][0]["text"], "<think>\nhm\n</think>\n\nYes.");
}

}  // namespace
}  // namespace fastfd::gateway
