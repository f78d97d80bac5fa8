#include "fastfd/gateway/model_text_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;

class ModelTextServiceTest : public ::testing::Test {
 protected:
  /// What a client sees of `tokens`, and whether a stop string ended it.
  std::pair<std::string, bool> stream(const std::vector<TokenId>& tokens,
                                      const std::vector<std::string>& stops,
                                      std::size_t min_tokens = 0) const {
    const auto text_stream = text_->new_stream({stops, {}, false});
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string piece;
      const bool stopped = text_stream->push(tokens[i], i >= min_tokens, piece);
      EXPECT_TRUE(is_utf8(piece)) << "half a character";
      text += piece;
      if (stopped) {
        return {text, true};
      }
    }
    text_stream->finish(text);
    return {text, false};
  }

  std::shared_ptr<const TextService> text_ =
      load_text_service(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
};

TEST_F(ModelTextServiceTest, RendersAndContinuesChats) {
  const auto chat = nlohmann::ordered_json::parse(
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"Once"}])");
  EXPECT_EQ(text_->render_chat(nlohmann::ordered_json::array({chat[0]}), {}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  EXPECT_EQ(text_->render_chat(chat, options),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce");
}

/// A folder with atlas-moe's tokenizer, changed, and a chat template.
class ChangedModelTest : public ::testing::Test {
 protected:
  ~ChangedModelTest() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const TextService> load(const std::string& chat_template,
                                          const ordered_json& more_tokens = ordered_json::array()) {
    std::filesystem::create_directories(folder_);
    std::ifstream file(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe/tokenizer.json");
    ordered_json tokenizer = ordered_json::parse(file);
    for (const auto& token : more_tokens) {
      tokenizer["added_tokens"].push_back(token);
    }
    std::ofstream(folder_ / "tokenizer.json") << tokenizer;
    std::ofstream(folder_ / "chat_template.jinja") << chat_template;
    return load_text_service(folder_);
  }

  static std::string refusal(const TextService& text, const ordered_json& messages,
                             const ChatRenderOptions& options) {
    try {
      return "rendered: " + text.render_chat(messages, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("fastfd_text_" + std::to_string(::getpid()));
};

TEST_F(ChangedModelTest, MessagesAreContinuedWhateverTheTemplateDoesToThem) {
  const auto messages =
      ordered_json::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b "}])");
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  const std::string loop = "{% for m in messages %}";
  EXPECT_EQ(load(loop + "[{{ m.content }}]{% endfor %}")->render_chat(messages, options), "[a][b ");
  EXPECT_EQ(load(loop + "[{{ m.content | trim }}]{% endfor %}")->render_chat(messages, options),
            "[a][b");
  EXPECT_EQ(refusal(*load(loop + "{{ m.role }}{% endfor %}"), messages, options).substr(0, 56),
            "continue_final_message: the template leaves the end of t");
  // An answer that has not begun yet.
  const auto empty = ordered_json::parse(R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(
      load(loop + "<{{ m.role }}>{{ m.content }}</>{% endfor %}")->render_chat(empty, options),
      "<assistant>");
}

TEST_F(ChangedModelTest, ArgumentsAreTextsForTemplatesThatCantPrintObjects) {
  const auto messages = ordered_json::parse(
      R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f",
      "arguments":{"z":1,"a":2}}}]}])");
  const std::string call = "{% for m in messages %}{% set f = m.tool_calls[0].function %}";
  EXPECT_EQ(load(call + "{{ f.arguments | tojson }}{% endfor %}")->render_chat(messages, {}),
            R"({"z": 1, "a": 2})");
  EXPECT_EQ(load(call + "{{ 'f' + f.arguments }}{% endfor %}")->render_chat(messages, {}),
            R"(f{"z":1,"a":2})");
}

TEST_F(ChangedModelTest, ToolsAndDocumentsReachTheTemplate) {
  const auto list = ordered_json::parse(R"([{"z":1,"a":2}])");
  ChatRenderOptions options;
  options.tools = &list;
  options.documents = &list;
  const auto text = load("{{ tools | tojson }}{{ documents[0].z }}");
  EXPECT_TRUE(text->takes_tools());
  EXPECT_EQ(text->render_chat(list, options), R"([{"z": 1, "a": 2}]1)");
  EXPECT_FALSE(load("{{ messages }}")->takes_tools());
}

TEST_F(ChangedModelTest, ReasoningTagsAreTokensOrOfTheTemplate) {
  EXPECT_FALSE(load("{{ messages }}")->has_reasoning_tags());
  EXPECT_TRUE(load("{{ '</think>' }}")->has_reasoning_tags());
  const auto tag = [](int id, const char* content, bool special) {
    return ordered_json{{"id", id},           {"content", content}, {"special", special},
                        {"lstrip", false},    {"rstrip", false},    {"single_word", false},
                        {"normalized", false}};
  };
  for (const bool special : {false, true}) {
    const auto text = load(
        "", ordered_json::array({tag(6144, "<think>", special), tag(6145, "</think>", special)}));
    EXPECT_TRUE(text->has_reasoning_tags());
    const auto shown = [&](bool shows_tags, const std::vector<std::string>& stops) {
      const auto stream = text->new_stream({stops, {}, shows_tags});
      std::string out;
      for (const TokenId token : text->encode("<think>a</think>b", false)) {
        stream->push(token, true, out);
      }
      stream->finish(out);
      return out;
    };
    EXPECT_EQ(shown(true, {}), "<think>a</think>b");
    EXPECT_EQ(shown(true, {"b"}), "<think>a</think>");
    EXPECT_EQ(shown(false, {}), special ? "ab" : "<think>a</think>b");
  }
}

TEST_F(ChangedModelTest, ChannelsNeedTheirTokens) {
  EXPECT_FALSE(load("")->channel_tokens());
  ordered_json tokens = ordered_json::array();
  for (const char* name : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    tokens.push_back({{"id", 6144 + tokens.size()},
                      {"content", name},
                      {"special", true},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"single_word", false},
                      {"normalized", false}});
    EXPECT_EQ(load("", tokens)->channel_tokens().has_value(), tokens.size() == 4);
  }
  const auto channels = load("", tokens)->channel_tokens();
  EXPECT_EQ(channels->start, 6144);
  EXPECT_EQ(channels->end, 6147);
  EXPECT_EQ(channels->call, kNoToken);
}

TEST_F(ChangedModelTest, EarlierReasoningHasTheNameThatTheTemplateReads) {
  const auto messages =
      ordered_json::parse(R"([{"role":"assistant","content":"b","reasoning_content":"a"}])");
  EXPECT_EQ(load("{% for message in messages %}{{ message.thinking }}{% endfor %}")
                ->render_chat(messages, {}),
            "a");
  EXPECT_EQ(load("{{ messages[0].keys() | list | length }}")->render_chat(messages, {}), "3");
  EXPECT_TRUE(load("{{ reasoning_effort }}")->takes_reasoning_effort());
  EXPECT_FALSE(load("{{ messages }}")->takes_reasoning_effort());
}

TEST_F(ModelTextServiceTest, StreamsWhatDecodeGives) {
  const std::string text =
      "Grüße, 世界! \xF0\x9F\xA6\x8A\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 done";
  const auto tokens = text_->encode(text, false);
  EXPECT_EQ(text_->decode(tokens, true), text);
  EXPECT_EQ(stream(tokens, {}), std::pair(text, false));
  EXPECT_EQ(stream(tokens, {"never"}), std::pair(text, false));
}

TEST_F(ModelTextServiceTest, FindsStopStringsWhereverTokensEnd) {
  const std::string text = "The little fox ran over the hill and far away.";
  const auto tokens = text_->encode(text, false);
  for (std::size_t from = 1; from + 5 < text.size(); ++from) {
    const std::string stop = text.substr(from, 5);
    EXPECT_EQ(stream(tokens, {"zzz", stop}), std::pair(text.substr(0, text.find(stop)), true));
  }
  EXPECT_EQ(stream(tokens, {"The"}, 1).first.substr(0, 3), "The") << "min_tokens passes unchecked";
}

TEST_F(ModelTextServiceTest, SpecialTokensAreSilentButHaveNames) {
  auto tokens = text_->encode("Hi<|im_end|>", false);
  const TokenId end = tokens.back();
  EXPECT_EQ(text_->token_bytes(end), "<|im_end|>");
  EXPECT_EQ(stream(tokens, {}), std::pair(std::string("Hi"), false));
  EXPECT_EQ(text_->decode(tokens, false), "Hi<|im_end|>");
}

TEST_F(ModelTextServiceTest, IdsOutsideTheTokenizerHaveNoText) {
  EXPECT_EQ(text_->token_bytes(1'000'000), "");
  EXPECT_EQ(stream({1'000'000}, {"stop"}), std::pair(std::string(), false));
}

}  // namespace
}  // namespace fastfd::gateway
