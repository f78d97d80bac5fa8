#include "gateway/generation_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/api_error.h"
#include "http/fake_text.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GenerationRequest read(const std::string& body, bool chat,
                       const ServedModel& model = make_fake_model()) {
  return read_generation_request(body, chat, model, /*max_sequences=*/32);
}

GenerationRequest read_chat(const std::string& fields) {
  return read(R"({"messages":[{"role":"user","content":"Hi"}])" + fields + "}", true);
}

GenerationRequest read_completion(const std::string& fields) {
  return read(R"({"prompt":"abc")" + fields + "}", false);
}

ApiError error_of(const std::string& body, bool chat) {
  try {
    read(body, chat);
  } catch (const RequestRejected& rejected) {
    return rejected.error();
  }
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

struct BadInput {
  const char* fields;
  const char* param;
  const char* message_part;  ///< value or legal range, as people read it
  const char* code = "invalid_value";
};

class BadParam : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadParam, IsRefusedWithNameValueAndRange) {
  const BadInput& input = GetParam();
  for (const bool chat : {true, false}) {
    const std::string prompt =
        chat ? R"({"messages":[{"role":"user","content":"Hi"}],)" : R"({"prompt":"abc",)";
    const ApiError error = error_of(prompt + input.fields + "}", chat);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_EQ(error.param, input.param) << error.message;
    EXPECT_THAT(error.message, AllOf(HasSubstr(input.param), HasSubstr(input.message_part)));
    EXPECT_EQ(error.code, input.code) << error.message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    BothEndpoints, BadParam,
    ::testing::Values(
        BadInput{R"("temperature":2.5)", "temperature", "is 2.5; it must be a number in [0, 2]"},
        BadInput{R"("temperature":-0.1)", "temperature", "-0.1"},
        BadInput{R"("temperature":"hot")", "temperature", "\"hot\"", "invalid_type"},
        BadInput{R"("temperature":true)", "temperature", "true", "invalid_type"},
        BadInput{R"("top_p":0)", "top_p", "is 0; it must be a number in (0, 1]"},
        BadInput{R"("top_p":1.01)", "top_p", "1.01"},
        BadInput{R"("top_k":-2)", "top_k", "is -2; it must be an integer in [-1, "},
        BadInput{R"("top_k":1.5)", "top_k", "1.5", "invalid_type"},
        BadInput{R"("min_p":1)", "min_p", "[0, 1)"},
        BadInput{R"("presence_penalty":2.1)", "presence_penalty", "[-2, 2]"},
        BadInput{R"("frequency_penalty":-2.1)", "frequency_penalty", "[-2, 2]"},
        BadInput{R"("max_tokens":0)", "max_tokens", "is 0; it must be an integer in [1, "},
        BadInput{R"("max_tokens":-1)", "max_tokens", "-1"},
        BadInput{R"("max_tokens":"5")", "max_tokens", "\"5\"", "invalid_type"},
        BadInput{R"("max_tokens":18446744073709551615)", "max_tokens", "18446744073709551615"},
        BadInput{R"("max_tokens":4,"min_tokens":5)", "min_tokens",
                 "is 5; it must be an integer "
                 "in [0, 4]"},
        BadInput{R"("seed":1.5)", "seed", "64-bit integer", "invalid_type"},
        BadInput{R"("seed":9223372036854775808)", "seed", "9223372036854775808"},
        BadInput{R"("n":0)", "n", "[1, 16]"}, BadInput{R"("n":17)", "n", "is 17"},
        BadInput{R"("n":2,"best_of":3)", "best_of", "is 3", "unsupported_parameter"},
        BadInput{R"("stop":"")", "stop", "non-empty"},
        BadInput{R"("stop":["a",""])", "stop", "non-empty"},
        BadInput{R"("stop":["a",5])", "stop", "5", "invalid_type"},
        BadInput{R"("stop":7)", "stop", "is 7", "invalid_type"},
        BadInput{
            R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
            "stop", "up to 16"},
        BadInput{R"("stop_token_ids":[264])", "stop_token_ids",
                 "[0] is 264; it must be a token id "
                 "in [0, 264)"},
        BadInput{R"("stop_token_ids":[-1])", "stop_token_ids", "-1"},
        BadInput{R"("stop_token_ids":["a"])", "stop_token_ids", "\"a\"", "invalid_type"},
        BadInput{R"("stop_token_ids":5)", "stop_token_ids", "is 5", "invalid_type"},
        BadInput{R"("ignore_eos":1)", "ignore_eos", "true or false", "invalid_type"},
        BadInput{R"("logit_bias":{"264":1})", "logit_bias", "264"},
        BadInput{R"("logit_bias":{"x":1})", "logit_bias", "\"x\""},
        BadInput{R"("logit_bias":{"1":101})", "logit_bias", "101; it must be a number in"},
        BadInput{R"("logit_bias":[1])", "logit_bias", "[1]", "invalid_type"},
        BadInput{R"("stream":"yes")", "stream", "\"yes\"", "invalid_type"},
        BadInput{R"("stream_options":{"include_usage":true})", "stream_options", "stream is true"},
        BadInput{R"("stream":true,"stream_options":7)", "stream_options", "is 7", "invalid_type"},
        BadInput{R"("stream":true,"stream_options":{"include_usage":1})",
                 "stream_options.include_usage", "is 1", "invalid_type"},
        BadInput{R"("response_format":{"type":"json_object"})", "response_format", "json_object",
                 "unsupported_parameter"},
        BadInput{R"("repetition_penalty":0)", "repetition_penalty", "[0.01, 100]"},
        BadInput{R"("priority":5000)", "priority", "[-1000, 1000]"}));

struct BadBody {
  bool chat;
  const char* body;
  const char* param;
  const char* message_part;
};

class BadRequest : public ::testing::TestWithParam<BadBody> {};

TEST_P(BadRequest, IsRefused) {
  const BadBody& input = GetParam();
  const ApiError error = error_of(input.body, input.chat);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, input.param) << error.message;
  EXPECT_THAT(error.message, HasSubstr(input.message_part));
}

INSTANTIATE_TEST_SUITE_P(
    Json, BadRequest,
    ::testing::Values(BadBody{true, "", "", "line 1, column 1 (byte 1)"},
                      BadBody{true, "{\"a\": 1,\n  oops}", "", "line 2, column 3"},
                      BadBody{true, "[1]", "", "must be a JSON object, not array"},
                      BadBody{true, "\"a\"", "", "not string"},
                      BadBody{true, "{\"a\":1e999}", "", "valid JSON"},
                      BadBody{true, "{\"a\":\"\xff\"}", "", "not UTF-8"},
                      BadBody{true, "{\"a\":\"\\ud800\"}", "", "valid JSON"},
                      BadBody{true, "{\"a\":1} x", "", "line 1, column 9"}));

INSTANTIATE_TEST_SUITE_P(
    Messages, BadRequest,
    ::testing::Values(
        BadBody{true, R"({})", "messages", "missing"},
        BadBody{true, R"({"messages":[]})", "messages", "at least one"},
        BadBody{true, R"({"messages":"Hi"})", "messages", "\"Hi\""},
        BadBody{true, R"({"messages":["Hi"]})", "messages[0]", "role and content"},
        BadBody{true, R"({"messages":[{"content":"Hi"}]})", "messages[0].role", "missing"},
        BadBody{true, R"({"messages":[{"role":"wizard","content":"Hi"}]})", "messages[0].role",
                "one of system, developer, user, assistant, tool"},
        BadBody{true, R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing"},
        BadBody{true, R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "5"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
                "messages[0].content[0].type", "image_url"},
        BadBody{true, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
                "messages[0].content[0].text", "must be a string"},
        BadBody{true, R"({"messages":[{"role":"user","content":"refuse me"}]})", "messages",
                "this conversation is refused"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})",
                "tools[0]", "must be an object like"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],
                    "tools":[{"type":5,"function":{"name":"f"}}]})",
                "tools[0]", "must be an object like"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],
                    "tools":[{"type":null,"function":{"name":"f"}}]})",
                "tools[0]", "must be an object like"},
        BadBody{true, R"({"messages":[{"role":"assistant","tool_calls":{}}]})",
                "messages[0].tool_calls", "a list of tool calls"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"tools":{"type":"function"}})",
                "tools", "a list of functions"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",
                "function":{"name":"f","parameters":[]}}]})",
                "tools[0].function.parameters", "a JSON schema"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",
                "function":{"description":"f"}}]})",
                "tools[0].function.name", "missing"},
        BadBody{true,
                R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f",
                "arguments":"{"}}]}]})",
                "messages[0].tool_calls[0].function.arguments", "no JSON object in a string"},
        BadBody{true, R"({"messages":[{"role":"assistant","tool_calls":["f"]}]})",
                "messages[0].tool_calls[0]", "must be an object like"},
        BadBody{true, R"({"messages":[{"role":"assistant","reasoning_content":5}]})",
                "messages[0].reasoning_content", "must be a string"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"documents":["x"]})",
                "documents", "a list of objects"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"chat_template":"x"})",
                "chat_template", "not supported"},
        BadBody{true,
                R"({"messages":[{"role":"assistant","content":"a"}],"add_generation_prompt":true,
                "continue_final_message":true})",
                "add_generation_prompt", "exclude each other"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})",
                "tool_choice", "required"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"logprobs":2})", "logprobs",
                "true or false"},
        BadBody{true, R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})",
                "top_logprobs", "needs logprobs"},
        BadBody{true,
                R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":21})",
                "top_logprobs", "[0, 20]"}));

INSTANTIATE_TEST_SUITE_P(
    Prompts, BadRequest,
    ::testing::Values(BadBody{false, R"({})", "prompt", "missing"},
                      BadBody{false, R"({"prompt":""})", "prompt", "at least one"},
                      BadBody{false, R"({"prompt":[]})", "prompt", "[]"},
                      BadBody{false, R"({"prompt":7})", "prompt", "7"},
                      BadBody{false, R"({"prompt":["a",7]})", "prompt[1]", "7"},
                      BadBody{false, R"({"prompt":[1,"a"]})", "prompt", "[1] is \"a\""},
                      BadBody{false, R"({"prompt":[1,264]})", "prompt", "264"},
                      BadBody{false, R"({"prompt":[[1],[2,-3]]})", "prompt[1]", "-3"},
                      BadBody{false, R"({"prompt":[[]]})", "prompt", "at least one"},
                      BadBody{false, R"({"prompt":"a","suffix":"b"})", "suffix", "not supported"},
                      BadBody{false, R"({"prompt":"a","logprobs":true})", "logprobs", "[0, 20]"},
                      BadBody{false, R"({"prompt":"a","logprobs":1,"echo":true})", "echo",
                              "not supported"},
                      BadBody{false, R"({"prompt":["a","b","c"],"n":16})", "prompt",
                              "48 sequences (3 prompts x n = 16); at most 32"}));

TEST(GenerationRequestTest, TakesEveryParameter) {
  const GenerationRequest request = read_chat(
      R"(,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"seed":-7,"max_tokens":9,
      "max_completion_tokens":12,"min_tokens":2,"stop":["x","yz"],"stop_token_ids":[65,65],
      "ignore_eos":true,"presence_penalty":-1,"frequency_penalty":1.5,"repetition_penalty":1.25,
      "logit_bias":{"7":-100,"3":5.5},"logprobs":true,"top_logprobs":4,"n":3,"best_of":3,
      "stream":true,"stream_options":{"include_usage":true},"user":"me","store":false,
      "priority":3,"cache_salt":"tenant","tools":[],"unheard_of":{"a":1})");
  const SamplingParams& sampling = request.sampling;
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.9F);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.1F);
  EXPECT_EQ(request.seed, static_cast<std::uint64_t>(-7));
  EXPECT_EQ(request.prompts.at(0).max_tokens, 12U);
  EXPECT_EQ(sampling.min_tokens, 2U);
  EXPECT_THAT(request.stop_strings, ElementsAre("x", "yz"));
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(65, kFakeEos));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, -1.0F);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, 1.5F);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.25F);
  EXPECT_THAT(sampling.logit_bias,
              ElementsAre(std::pair<TokenId, float>(3, 5.5F), std::pair<TokenId, float>(7, -100)));
  EXPECT_EQ(sampling.num_logprobs, 4);
  EXPECT_EQ(request.num_choices, 3U);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "tenant");
}

TEST(GenerationRequestTest, DefaultsComeFromTheModel) {
  ServedModel model = make_fake_model(100);
  model.sampling = {true, 0.7F, 0.8F, 20, 0.0F};
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  GenerationRequest request = read(body, true, model);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.7F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.8F);
  EXPECT_EQ(request.sampling.top_k, 20);
  EXPECT_EQ(request.sampling.num_logprobs, -1);
  EXPECT_EQ(request.seed, std::nullopt);
  const std::size_t prompt_tokens = std::string_view("user: Hi\nassistant: ").size();
  EXPECT_EQ(request.prompts.at(0).tokens.size(), prompt_tokens);
  EXPECT_EQ(request.prompts.at(0).max_tokens, 100 - prompt_tokens);
  model.sampling.do_sample = false;
  EXPECT_EQ(read(body, true, model).sampling.temperature, 0.0F);
  EXPECT_EQ(read(R"({"prompt":"abc"})", false, model).prompts.at(0).max_tokens, 16U);
  EXPECT_EQ(read(R"({"prompt":"abc","max_tokens":null})", false, model).prompts.at(0).max_tokens,
            16U);
}

TEST(GenerationRequestTest, ContextLengthErrorsShowTheArithmetic) {
  const ServedModel model = make_fake_model(10);
  const auto message = [&model](const std::string& body) {
    try {
      read(body, false, model);
    } catch (const RequestRejected& rejected) {
      EXPECT_EQ(rejected.error().code, "context_length_exceeded");
      EXPECT_EQ(rejected.error().param, "prompt");
      return rejected.error().message;
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message(R"({"prompt":"12345678901"})"),
              AllOf(HasSubstr("10 tokens"), HasSubstr("has 11 tokens"), HasSubstr("at most 9")));
  EXPECT_THAT(message(R"({"prompt":"1234567","max_tokens":4})"),
              HasSubstr("asks for 11 tokens (7 in the prompt + 4 for the answer)"));
  EXPECT_EQ(message(R"({"prompt":"1234567","max_tokens":3})"), "accepted");
  EXPECT_EQ(read(R"({"prompt":"123456789"})", false, model).prompts.at(0).max_tokens, 1U);
}

TEST(GenerationRequestTest, PromptsComeInFourForms) {
  EXPECT_EQ(read_completion("").prompts.size(), 1U);
  const auto strings = read(R"({"prompt":["ab","c"]})", false);
  ASSERT_EQ(strings.prompts.size(), 2U);
  EXPECT_THAT(strings.prompts[0].tokens, ElementsAre('a', 'b'));
  const auto tokens = read(R"({"prompt":[5,0,263]})", false);
  ASSERT_EQ(tokens.prompts.size(), 1U);
  EXPECT_THAT(tokens.prompts[0].tokens, ElementsAre(5, 0, 263));
  const auto lists = read(R"({"prompt":[[1,2],[3]],"echo":false})", false);
  ASSERT_EQ(lists.prompts.size(), 2U);
  EXPECT_THAT(lists.prompts[1].tokens, ElementsAre(3));
}

TEST(GenerationRequestTest, ContentPartsAndRolesReachTheTemplate) {
  const auto request = read(
      R"({"messages":[{"role":"developer","content":"be kind"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null},{"role":"tool","content":"42"}],
      "chat_template_kwargs":{"thinking":false}})",
      true);
  EXPECT_EQ(make_fake_text()->decode(request.prompts.at(0).tokens, false),
            "system: be kind\nuser: a\nb\nassistant: \ntool: 42\nassistant: {\"thinking\":false}");
  const auto continued =
      read(R"({"messages":[{"role":"assistant","content":"Once"}],"continue_final_message":true})",
           true);
  EXPECT_EQ(make_fake_text()->decode(continued.prompts.at(0).tokens, false), "assistant: Once");
}

std::string prompt_of(const std::string& body) {
  return make_fake_text()->decode(read(body, true).prompts.at(0).tokens, false);
}

TEST(GenerationRequestTest, ToolsReachTheTemplateInTheClientsOrder) {
  const std::string tool =
      R"({"type":"function","function":{"name":"f","zeta":1,"alpha":{"y":1,"b":2}}})";
  const std::string request =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[)" + tool + "]";
  EXPECT_EQ(prompt_of(request + "}"), "tools: [" + tool + "]\nuser: a\nassistant: ");
  EXPECT_EQ(prompt_of(request + R"(,"tool_choice":"auto"})"),
            "tools: [" + tool + "]\nuser: a\nassistant: ");
  EXPECT_EQ(prompt_of(request + R"(,"tool_choice":"none"})"), "user: a\nassistant: ");
  EXPECT_EQ(prompt_of(R"({"messages":[{"role":"user","content":"a"}],"documents":[{"z":1,"a":2}],
                      "chat_template_kwargs":{"z":1,"a":2}})"),
            R"(user: a
assistant: [{"z":1,"a":2}]{"z":1,"a":2})");
}

TEST(GenerationRequestTest, ToolCallsAndReasoningOfEarlierTurnsReachTheTemplate) {
  EXPECT_EQ(prompt_of(R"({"messages":[{"role":"assistant","content":null,"reasoning_content":"so",
      "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":
      "{\"z\":1,\"a\":[]}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]})"),
            R"(assistant:  "so" [{"id":"1","type":"function","function":{"name":"f","arguments":)"
            R"({"z":1,"a":[]}}}])"
            "\ntool: ok \"1\"\nassistant: ");
}

TEST(GenerationRequestTest, OfEqualKeysTheLastCountsAtTheFirstsPlace) {
  EXPECT_EQ(prompt_of(R"({"messages":[],"messages":[{"role":"user","content":"a"}],
      "chat_template_kwargs":{"b":1,"a":2,"b":[3],"c":4,"a":5,"b":6}})"),
            R"(user: a
assistant: {"b":6,"a":5,"c":4})");
}

// Quadratic time in an object's keys would be hours here.
TEST(GenerationRequestTest, ManyKeysAreNoBurden) {
  std::string variables;
  for (int i = 0; i < 400'000; ++i) {
    variables += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  }
  const std::string body = R"({"messages":[{"role":"user","content":"a"}],"ignored":{)" +
                           variables + "}," + variables + "}";
  EXPECT_EQ(prompt_of(body), "user: a\nassistant: ");
}

TEST(GenerationRequestTest, TemplateVariablesCantReplaceWhatTheServerGives) {
  for (const std::string name : {"messages", "tools", "documents", "add_generation_prompt",
                                 "bos_token", "eos_token", "pad_token"}) {
    for (const char* value : {"[]", "null", "\"x\"", "true"}) {
      const ApiError error =
          error_of(R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{")" +
                       name + "\":" + value + "}}",
                   true);
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, "chat_template_kwargs." + name);
      EXPECT_THAT(error.message, HasSubstr(name + " may not be set"));
    }
  }
}

TEST(GenerationRequestTest, WrongModelIsNotFound) {
  const ApiError error = error_of(R"({"model":"gpt-9","prompt":"a"})", false);
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_THAT(error.message, AllOf(HasSubstr("gpt-9"), HasSubstr(kFakeModelName)));
}

TEST(GenerationRequestTest, AbsurdNestingIsRefusedBeforeItIsBuilt) {
  const std::string body = "{\"a\":" + std::string(100'000, '[');
  EXPECT_THAT(error_of(body, true).message, HasSubstr("nests deeper than"));
  // Brackets in strings don't nest.
  EXPECT_NO_THROW(read_completion(R"(,"user":")" + std::string(1000, '[') + R"(\"[[")"));
}

}  // namespace
}  // namespace fastfd::gateway
