#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/openai_api.h"
#include "bench/sse_parser.h"
#include "bench/url.h"
#include "bench/workload.h"

namespace fastfd::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseUrl, TakesHostPortAndPrefix) {
  const Url plain = parse_url("http://127.0.0.1:8000");
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, 8000);
  EXPECT_EQ(plain.prefix, "");
  EXPECT_EQ(parse_url("http://host").port, 80);
  EXPECT_EQ(parse_url("host:81").port, 81);
  EXPECT_EQ(parse_url("http://host:1/v1/").prefix, "");
  EXPECT_EQ(parse_url("http://host:1/proxy/v1").prefix, "/proxy");
  const Url ipv6 = parse_url("http://[::1]:8000/");
  EXPECT_EQ(ipv6.host, "::1");
  EXPECT_EQ(ipv6.to_string(), "http://[::1]:8000");
}

TEST(ParseUrl, RejectsWhatCannotWork) {
  for (const char* text :
       {"", "http://", "https://host", "ftp://host", "http://host:", "http://host:0",
        "http://host:65536", "http://host:8o", "http://[::1", "http://[::1]8000",
        "http://host/?q=1", "http://user@host", "http://a b"}) {
    EXPECT_THROW(parse_url(text), BenchError) << text;
  }
}

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  SseParser parser;
  std::vector<std::string> events;
  const auto collect = [&](std::string_view data) { events.emplace_back(data); };
  for (const std::string& piece : pieces) {
    parser.feed(piece, collect);
  }
  parser.finish(collect);
  return events;
}

TEST(SseParser, GivesTheSameEventsWhereverTheBytesAreCut) {
  const std::string stream =
      "\xEF\xBB\xBF: comment\n\nevent: x\ndata: {\"a\":1}\n\ndata:two\r\ndata: lines\r\n\r\n"
      "data\n\nid: 7\nretry: 1\n\ndata: cr\r\rdatabase: no\n\ndata: [DONE]\n";
  const std::vector<std::string> expected{"{\"a\":1}", "two\nlines", "", "cr", "[DONE]"};
  ASSERT_EQ(events_of({stream}), expected);
  std::vector<std::string> single_bytes;
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    EXPECT_EQ(events_of({stream.substr(0, cut), stream.substr(cut)}), expected) << "cut at " << cut;
    if (cut < stream.size()) {
      single_bytes.emplace_back(1, stream[cut]);
    }
  }
  EXPECT_EQ(events_of(single_bytes), expected);
}

TEST(StreamEvent, TellsTokensFromTheRest) {
  const auto role = parse_stream_event(
      R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})");
  EXPECT_FALSE(role.has_token || role.malformed || role.finished);
  EXPECT_TRUE(parse_stream_event(R"({"choices":[{"delta":{"content":"a"}}]})").has_token);
  EXPECT_TRUE(parse_stream_event(R"({"choices":[{"delta":{"reasoning_content":"a"}}]})").has_token);
  EXPECT_TRUE(parse_stream_event(R"({"choices":[{"text":"a"}]})").has_token);
  EXPECT_FALSE(parse_stream_event(R"({"choices":[{"text":""}]})").has_token);
  EXPECT_TRUE(parse_stream_event(R"({"choices":[{"text":"","finish_reason":"stop"}]})").finished);
  EXPECT_TRUE(parse_stream_event("[DONE]").done);
}

TEST(StreamEvent, ReadsUsageAndErrors) {
  const auto usage = parse_stream_event(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}})");
  EXPECT_TRUE(usage.has_usage);
  EXPECT_EQ(usage.prompt_tokens, 7U);
  EXPECT_EQ(usage.output_tokens, 5U);
  EXPECT_FALSE(parse_stream_event(R"({"choices":[],"usage":null})").has_usage);
  EXPECT_EQ(parse_stream_event(R"({"error":{"message":"server lost"}})").error, "server lost");
  for (const char* text : {"", "{", "[1]", "7", "{}", R"({"choices":7})", R"({"choices":[7]})"}) {
    EXPECT_TRUE(parse_stream_event(text).malformed) << text;
  }
}

TEST(ErrorMessage, PrefersOpenAisFormButShowsAnything) {
  EXPECT_EQ(error_message(R"({"error":{"message":"too long","type":"x"}})"), "too long");
  EXPECT_EQ(error_message(R"({"error":"plain"})"), "plain");
  EXPECT_EQ(error_message("<html>502</html>"), "<html>502</html>");
  EXPECT_EQ(first_model(R"({"data":[{"id":"a"},{"id":"b"}]})"), "a");
  EXPECT_EQ(first_model(R"({"data":[]})"), "");
  EXPECT_EQ(first_model("no json"), "");
}

TEST(RequestBody, AsksForWhatTheServerUnderstands) {
  Dialect dialect{"m", Endpoint::kCompletions, true, true, 0.5};
  const auto full = nlohmann::json::parse(request_body(dialect, {{1, 2, 3}, "", 9}));
  EXPECT_EQ(full["prompt"], nlohmann::json({1, 2, 3}));
  EXPECT_EQ(full["max_tokens"], 9);
  EXPECT_EQ(full["min_tokens"], 9);
  EXPECT_EQ(full["ignore_eos"], true);
  EXPECT_EQ(full["temperature"], 0.5);
  EXPECT_EQ(full["stream"], true);
  EXPECT_EQ(full["stream_options"]["include_usage"], true);

  dialect = {"m", Endpoint::kChat, false, false, std::nullopt};
  const auto plain = nlohmann::json::parse(request_body(dialect, {{}, "hi \xff", 9}));
  EXPECT_EQ(plain["messages"][0]["role"], "user");
  EXPECT_EQ(plain["messages"][0]["content"], "hi \xEF\xBF\xBD") << "invalid UTF-8 is replaced";
  for (const char* key : {"ignore_eos", "min_tokens", "stream_options", "temperature", "prompt"}) {
    EXPECT_FALSE(plain.contains(key)) << key;
  }
}

TEST(SyntheticWorkload, ItemsDependOnSeedAndIndexOnly) {
  ServeBenchOptions options;
  options.input_len = 50;
  options.output_len = 20;
  const auto a = synthetic_workload(options, true, {});
  const auto b = synthetic_workload(options, true, {});
  EXPECT_EQ(a->item(7).tokens, b->item(7).tokens);
  EXPECT_NE(a->item(7).tokens, a->item(8).tokens);
  EXPECT_EQ(a->item(7).tokens.size(), 50U);
  EXPECT_EQ(a->item(7).output_len, 20U);
  options.seed = 1;
  EXPECT_NE(synthetic_workload(options, true, {})->item(7).tokens, a->item(7).tokens);
  for (const std::int32_t token : a->item(3).tokens) {
    EXPECT_GE(token, 100);
    EXPECT_LT(token, 1000);
  }
}

TEST(SyntheticWorkload, LengthsFillTheRangeAndStayInIt) {
  ServeBenchOptions options;
  options.input_len = 100;
  options.output_len = 10;
  options.range_ratio = 0.5;
  const auto workload = synthetic_workload(options, true, {});
  std::set<std::uint32_t> output_lens;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const WorkItem item = workload->item(i);
    EXPECT_GE(item.tokens.size(), 50U);
    EXPECT_LE(item.tokens.size(), 150U);
    output_lens.insert(item.output_len);
  }
  EXPECT_EQ(output_lens.size(), 11U) << "5 to 15";
  EXPECT_EQ(*output_lens.begin(), 5U);
}

TEST(SyntheticWorkload, TextIsCutToTheLengthTheServerWillCount) {
  ServeBenchOptions options;
  options.input_len = 130;
  const auto workload = synthetic_workload(options, false, {10, 1.5});
  const std::string text = workload->item(0).text;
  EXPECT_EQ(std::count(text.begin(), text.end(), ' ') + 1, 80);  // (130 - 10) / 1.5
  EXPECT_TRUE(workload->item(0).tokens.empty());
}

TEST(SyntheticWorkload, RejectsImpossibleOptions) {
  ServeBenchOptions options;
  options.vocab_size = 100;
  EXPECT_THROW(synthetic_workload(options, true, {}), BenchError);
  EXPECT_NO_THROW(synthetic_workload(options, false, {}));
  options.range_ratio = 1;
  EXPECT_THROW(synthetic_workload(options, false, {}), BenchError);
  options = {};
  options.output_len = 0;
  EXPECT_THROW(synthetic_workload(options, false, {}), BenchError);
}

TEST(ShareGpt, TakesTheFirstExchangeOfUsableConversations) {
  const std::string text = R"([
    {"id": "1", "conversations": [{"from": "human", "value": "What is a page table, please?"},
                                  {"from": "gpt", "value": "A map from virtual to physical."}]},
    {"conversations": [{"from": "gpt", "value": "I begin although I should not."},
                       {"from": "human", "value": "Why would you do that, machine?"}]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "too short"}]},
    {"conversations": [{"from": "human", "value": "An answer is missing here"}]},
    {"conversations": "none"}, 7, {"other": []},
    {"conversations": [{"from": "user", "value": 7}, {"from": "assistant", "value": "number"}]}
  ])";
  const auto entries = parse_sharegpt(text, "file.json");
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].prompt, "What is a page table, please?");
  EXPECT_EQ(entries[0].output_len, 8U);  // 31 bytes at 4 a token
}

TEST(ShareGpt, SaysWhatIsWrongWithAFile) {
  const auto message = [](const std::string& text) {
    try {
      parse_sharegpt(text, "file.json");
    } catch (const BenchError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("{"), HasSubstr("file.json: not JSON"));
  EXPECT_THAT(message("{}"), HasSubstr("expected a JSON array"));
  EXPECT_THAT(message("[1, 2]"), HasSubstr("none of its 2 entries"));
  EXPECT_THROW(sharegpt_workload("/nonexistent/file.json", 0), BenchError);
}

}  // namespace
}  // namespace fastfd::bench
