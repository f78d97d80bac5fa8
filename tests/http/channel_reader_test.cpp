// Answers in OpenAI's harmony format: what of them is reasoning, what content, what neither.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <string>
#include <utility>

#include "gateway/answer_reader.h"
#include "http/gateway_fixture.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;

/// "<|start|>" and the others as the fake text's tokens.
std::string with_markers(std::string text) {
  constexpr std::array<const char*, 7> kNames = {"<|start|>",    "<|channel|>", "<|message|>",
                                                 "<|end|>",      "<|call|>",    "<|return|>",
                                                 "<|constrain|>"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const std::string name = kNames[i];
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name)) {
      text.replace(at, name.size(), 1, static_cast<char>(kFakeStart + static_cast<int>(i)));
    }
  }
  return text;
}

struct Answer {
  const char* prompt;
  const char* text;
  const char* reasoning;
  const char* content;
};

constexpr const char* kPrompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
constexpr Answer kAnswers[] = {
    {kPrompt,
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
     "<|return|>",
     "hm", "Yes."},
    {kPrompt, "<|channel|>final<|message|>Yes.", "", "Yes."},
    {kPrompt, "<|channel|>analysis<|message|>cut of", "cut of", ""},
    {kPrompt, "<|channel|>anal", "", ""},
    {kPrompt, "<|channel|>analysis<|message|>hm<|end|><|start|>assi", "hm", ""},
    // No channel, and one that nobody knows.
    {kPrompt, "<|message|>Yes.<|end|>", "", "Yes."},
    {kPrompt, "<|channel|>other<|message|>Yes.<|end|>", "", "Yes."},
    // A preamble, then a call; a call from within reasoning.
    {kPrompt,
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>",
     "",
     "I look.<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
     "{\"a\":1}"},
    {kPrompt,
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=python<|channel|>analysis"
     "<|message|>1+1<|call|>",
     "hm", "<|start|>assistant to=python<|channel|>analysis<|message|>1+1"},
    // A forgotten end, and text where a header is due.
    {kPrompt, "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Yes.", "hm", "Yes."},
    {kPrompt, "<|channel|>analysis<|message|>hm<|end|>Yes.<|return|>", "hm", "Yes."},
    {kPrompt,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis"
     "<|message|>b<|end|>",
     "ab", ""},
    // The prompt has begun the message, or said nothing at all.
    {"<|start|>assistant<|channel|>final<|message|>So", " be it.<|return|>", "", " be it."},
    {"<|start|>assistant<|channel|>analysis<|message|>So",
     "?<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "?", "Yes."},
    {"<|start|>user<|message|>Hi<|end|>",
     "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>", "hm", ""},
    {"user: Hi\n", "Yes.", "", "Yes."},
    // Half a character goes with its own message.
    {kPrompt,
     "<|channel|>analysis<|message|>\xC3<|end|><|start|>assistant<|channel|>final<|message|>\xBC",
     "\xEF\xBF\xBD", "\xEF\xBF\xBD"},
};

TEST(ChannelReaderTest, ChannelsSayWhatIsReasoning) {
  const auto text = make_fake_text();
  for (const Answer& answer : kAnswers) {
    const auto prompt = text->encode(with_markers(answer.prompt), false);
    const auto reader =
        make_answer_reader(*text, {{"never"}, prompt, false}, {.channels = text->channel_tokens()});
    ReasoningSplitter::Piece piece;
    for (const TokenId token : text->encode(with_markers(answer.text), false)) {
      EXPECT_FALSE(reader->push(token, true, piece));
    }
    reader->finish(piece);
    EXPECT_EQ(piece.reasoning, answer.reasoning) << answer.text;
    EXPECT_EQ(piece.content, with_markers(answer.content)) << answer.text;
  }
}

TEST(ChannelReaderTest, StopStringsEndWithinAMessage) {
  const auto text = make_fake_text();
  const auto read = [&](const std::string& answer, const std::string& stop) {
    const auto reader =
        make_answer_reader(*text, {{stop}, {}, false}, {.channels = text->channel_tokens()});
    ReasoningSplitter::Piece piece;
    for (const TokenId token : text->encode(with_markers(answer), false)) {
      if (reader->push(token, true, piece)) {
        return fmt::format("{}|{}|stopped", piece.reasoning, piece.content);
      }
    }
    reader->finish(piece);
    return fmt::format("{}|{}", piece.reasoning, piece.content);
  };
  const std::string answer =
      "<|channel|>analysis<|message|>hm AB<|end|><|start|>assistant<|channel|>final<|message|>BA.";
  EXPECT_EQ(read(answer, "A."), "hm AB|B|stopped");
  EXPECT_EQ(read(answer, "m A"), "h||stopped");
  EXPECT_EQ(read(answer, "ABB"), "hm AB|BA.") << "two messages";
  EXPECT_EQ(read(answer, "final"), "hm AB|BA.") << "a header";
}

class ChannelGatewayTest : public GatewayFixture {
 protected:
  static ServedModel model() {
    ServedModel model = make_fake_model();
    model.reasoning = Reasoning::kChannels;
    return model;
  }
  ChannelGatewayTest() : GatewayFixture(test_options(), model()) {
    engine_.set_reply(
        with_markers("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|"
                     "message|>Yes."));
  }
};

TEST_F(ChannelGatewayTest, ReasoningIsApartFromTheContent) {
  const auto message = [&](const json& fields) {
    return json::parse(chat(fields).body)["choices"][0]["message"];
  };
  EXPECT_EQ(message(json::object()),
            json::parse(R"({"role":"assistant","reasoning_content":"hm","content":"Yes.",
            "refusal":null})"));
  EXPECT_EQ(message({{"include_reasoning", false}}),
            json::parse(R"({"role":"assistant","content":"Yes.","refusal":null})"));
  std::string reasoning;
  const ClientResponse response = chat({{"stream", true}});
  for (const std::string& event : response.events()) {
    if (event != "[DONE]") {
      reasoning += json::parse(event)["choices"][0]["delta"].value("reasoning_content", "");
    }
  }
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(streamed_text(response), "Yes.");
}

TEST_F(ChannelGatewayTest, TheEffortReachesTheTemplate) {
  const auto prompt_of = [&](const json& fields) {
    EXPECT_EQ(chat(fields).status, 200);
    std::string text;
    const auto requests = engine_.submitted();
    for (const TokenId token : requests.back().prompt) {
      text += static_cast<char>(token);
    }
    return text;
  };
  EXPECT_THAT(prompt_of({{"reasoning_effort", "high"}}),
              ::testing::EndsWith(R"({"reasoning_effort":"high"})"));
  EXPECT_THAT(prompt_of({{"reasoning_effort", "high"},
                         {"chat_template_kwargs", {{"reasoning_effort", "low"}}}}),
              ::testing::EndsWith(R"({"reasoning_effort":"low"})"));
  EXPECT_EQ(chat({{"reasoning_effort", 3}}).status, 400);
}

}  // namespace
}  // namespace fastfd::gateway
