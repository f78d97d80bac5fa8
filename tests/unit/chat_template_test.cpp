#include "fastfd/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fastfd {
namespace {

using nlohmann::ordered_json;
using Kind = ChatTemplateError::Kind;

ordered_json read_json(const std::string& path) {
  std::ifstream file(std::string(FASTFD_SOURCE_DIR) + "/" + path);
  return ordered_json::parse(file);
}

/// tests/reference/text/template_golden.json, written by make_template_golden.py.
const ordered_json& golden() {
  static const ordered_json value = read_json("tests/reference/text/template_golden.json");
  return value;
}

std::chrono::system_clock::time_point golden_time() {
  std::tm local{};
  local.tm_year = 125;
  local.tm_mon = 2;
  local.tm_mday = 9;
  local.tm_hour = 14;
  local.tm_min = 5;
  local.tm_sec = 6;
  local.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&local));
}

ChatTemplate::Options options() {
  ChatTemplate::Options result;
  for (const auto& [name, token] : golden().at("tokens").items()) {
    result.special_tokens[name] = token.get<std::string>();
  }
  result.clock = golden_time;
  return result;
}

/// {"text": ...} or {"error": kind, "message": ...}, as in the golden file.
ordered_json outcome(const std::string& source, const ordered_json& messages,
                     const ordered_json& tools, bool prompt, const ordered_json& variables) {
  try {
    return {{"text", ChatTemplate(source, options()).render(messages, tools, prompt, variables)}};
  } catch (const ChatTemplateError& error) {
    switch (error.kind()) {
      case Kind::kSyntax:
        return {{"error", "syntax"}, {"what", error.what()}};
      case Kind::kRaised:
        return {{"error", "raised"}, {"message", error.reason()}};
      default:
        return {{"error", "runtime"}, {"what", error.what()}};
    }
  }
}

void expect_golden(const ordered_json& actual, const ordered_json& expected,
                   const std::string& what) {
  for (const char* key : {"text", "error", "message"}) {
    if (expected.contains(key)) {
      ASSERT_TRUE(actual.contains(key))
          << what << "\ngot " << actual << "\nwant " << key << ' ' << expected.at(key);
      EXPECT_EQ(actual.at(key).get<std::string>(), expected.at(key).get<std::string>()) << what;
    }
  }
}

TEST(ChatTemplate, ConversationsAreRenderedAsByJinja) {
  const ordered_json& cases = golden().at("cases");
  ASSERT_GT(cases.size(), 100U);
  for (const ordered_json& entry : cases) {
    const auto name = [&](const char* key) { return entry.at(key).get<std::string>(); };
    expect_golden(outcome(golden().at("templates").at(name("template")).get<std::string>(),
                          golden().at("conversations").at(name("messages")),
                          golden().at("tools").at(name("tools")), entry.at("prompt").get<bool>(),
                          golden().at("variables").at(name("variables"))),
                  entry, name("template") + " " + name("messages") + " " + name("tools"));
  }
}

TEST(ChatTemplate, ConstructsAreRenderedAsByJinja) {
  const ordered_json& snippets = golden().at("snippets");
  ASSERT_GT(snippets.size(), 150U);
  for (const ordered_json& entry : snippets) {
    const auto source = entry.at("source").get<std::string>();
    expect_golden(outcome(source, ordered_json::array(), nullptr, false, golden().at("context")),
                  entry, source);
  }
}

TEST(ChatTemplate, AtlasMoeGoldenChats) {
  const auto chat = ChatTemplate::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  ASSERT_NE(chat, nullptr);
  std::size_t num_chats = 0;
  const ordered_json prompts = read_json("models/atlas-moe/golden.json").at("prompts");
  for (const ordered_json& prompt : prompts) {
    if (prompt.contains("messages") && !prompt.at("messages").is_null()) {
      ++num_chats;
      EXPECT_EQ(chat->render(prompt.at("messages"), true), prompt.at("text").get<std::string>());
    }
  }
  EXPECT_EQ(num_chats, 32U);
}

std::string render(const std::string& source, const ordered_json& variables = {},
                   const ChatTemplateLimits& limits = {}) {
  ChatTemplate::Options with_limits;
  with_limits.limits = limits;
  return ChatTemplate(source, with_limits).render(ordered_json::array(), nullptr, false, variables);
}

ChatTemplateError error_of(const std::string& source, const ChatTemplateLimits& limits = {}) {
  try {
    const std::string text = render(source, {}, limits);
    ADD_FAILURE() << "no error, but: " << text.substr(0, 200);
  } catch (const ChatTemplateError& error) {
    return error;
  }
  return {Kind::kSyntax, 0, "none"};
}

TEST(ChatTemplate, ErrorsNameLineAndCause) {
  const auto undefined = error_of("a\nb\n{{ nothing.here }}");
  EXPECT_EQ(undefined.kind(), Kind::kRuntime);
  EXPECT_EQ(undefined.line(), 3);
  EXPECT_STREQ(undefined.what(), "chat template, line 3: 'nothing' is undefined");
  const auto attribute = error_of("{% set d = {'a': 1} %}\n{{ d.b.c }}");
  EXPECT_EQ(attribute.reason(), "'dict object' has no attribute 'b'");
  EXPECT_EQ(attribute.line(), 2);
  const auto syntax = error_of("\n\n{% if x %}\nnever closed");
  EXPECT_EQ(syntax.kind(), Kind::kSyntax);
  EXPECT_THAT(syntax.reason(), testing::HasSubstr("missing 'endif'"));
  EXPECT_THAT(error_of("{{ 1|frobnicate }}").reason(),
              testing::HasSubstr("filter 'frobnicate' is unknown or not supported"));
  EXPECT_THAT(error_of("{{ 1 is frobnicated }}").reason(),
              testing::HasSubstr("test 'frobnicated' is unknown or not supported"));
  EXPECT_THAT(error_of("{% include 'x' %}").reason(),
              testing::HasSubstr("tag 'include' is unknown or not supported; supported are if"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}").reason(),
              testing::HasSubstr("does not fit 64 bits"));
  const auto raised = error_of("\n{{ raise_exception('no system role') }}");
  EXPECT_EQ(raised.kind(), Kind::kRaised);
  EXPECT_EQ(raised.reason(), "no system role");
  EXPECT_EQ(raised.line(), 2);
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) {
    result += text;
  }
  return result;
}

// What a hostile template might try; each must end soon with a clean error.
TEST(ChatTemplate, HostileTemplatesEndWithALimit) {
  ChatTemplateLimits limits;
  limits.max_steps = 200'000;
  limits.max_output_bytes = 1 << 20;
  const std::string endless =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
      "{% endfor %}{% endfor %}{% endfor %}";
  for (const std::string& source : {
           endless,
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string("{{ 'x' * 999999999 }}"),
           std::string("{{ [1] * 999999999 }}"),
           std::string("{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
                       "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
           std::string("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}"
                       "{% set ns.l = [ns.l] %}{% endfor %}"),
           std::string("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"),
           std::string("{{ 'a'.replace('', 'b' * 1000).replace('', 'c' * 1000) }}"),
           std::string("{{ '%9999999d' % 1 }}"),
           std::string("{{ range(100001) }}"),
           std::string("{{ ('ab' * 9999).join(range(999)|map('string')) }}"),
           std::string("{{ 'x'|indent(99999999) }}"),
           std::string("{% for i in range(9999) %}0123456789012345678901234567890123456789"
                       "0123456789012345678901234567890123456789012345678901234567890123456789"
                       "{% endfor %}"),
       }) {
    EXPECT_EQ(error_of(source, limits).kind(), Kind::kLimit) << source;
  }
}

TEST(ChatTemplate, DeeplyNestedSourceIsRefused) {
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"(", ")"}, {"[", "]"}, {"-", ""}}) {
    EXPECT_EQ(error_of("{{ " + repeated(open, 5000) + "1" + repeated(close, 5000) + " }}").kind(),
              Kind::kSyntax);
  }
  EXPECT_EQ(error_of("{{ 1" + repeated(" + 1", 5000) + " }}").kind(), Kind::kSyntax);
  EXPECT_EQ(error_of("{{ a" + repeated(".b", 5000) + " }}").kind(), Kind::kSyntax);
  EXPECT_EQ(error_of("{{ a" + repeated("|list", 5000) + " }}").kind(), Kind::kSyntax);
  EXPECT_EQ(error_of("{{ " + repeated("not ", 5000) + "1 }}").kind(), Kind::kSyntax);
  EXPECT_EQ(error_of(repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000)).kind(),
            Kind::kSyntax);
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", 150) + " }}"), "151");
}

TEST(ChatTemplate, DeeplyNestedMessagesAreRefused) {
  ordered_json nested = 1;
  for (int i = 0; i < 500; ++i) {
    nested = ordered_json::array({nested});
  }
  EXPECT_THROW(static_cast<void>(render("{{ x }}", {{"x", nested}})), ChatTemplateError);
}

TEST(ChatTemplate, InvalidUtf8InMessagesIsReplaced) {
  EXPECT_EQ(render("{{ x|length }}{{ x[1] }}", {{"x", "a\xFF\xE2\x82"}}), "3\uFFFD");
}

TEST(ChatTemplate, ReferenceCyclesAreFreed) {
  // Checked by LeakSanitizer.
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ x }}"
                   "{% endmacro %}{% for x in [1] %}{% macro inner() %}{{ x }}{% endmacro %}"
                   "{% set ns.m = inner %}{% set ns.loop = loop %}"
                   "{% set c = loop.changed(loop.cycle) %}{% endfor %}{{ ns.m() }}"),
            "1");
}

TEST(ChatTemplate, ObjectsKeepTheClientsKeyOrder) {
  const auto tools = ordered_json::parse(R"([{"zeta": 1, "alpha": {"y": 2, "b": 3}}])");
  EXPECT_EQ(ChatTemplate("{{ tools|tojson }}")
                .render(ordered_json::array(), tools, false, ordered_json::object()),
            R"([{"zeta": 1, "alpha": {"y": 2, "b": 3}}])");
}

TEST(ChatTemplate, VariablesWinOverTheOthers) {
  EXPECT_EQ(render("{{ add_generation_prompt }} {{ documents }} {{ tools }}",
                   {{"add_generation_prompt", "mine"}, {"tools", 1}}),
            "mine None 1");
}

TEST(ChatTemplate, Strftime) {
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%d %b %Y %H:%M:%S.%f %%f') }}", options())
                .render(ordered_json::array(), false),
            "09 Mar 2025 14:05:06.000000 %f");
}

class ChatTemplateFolder : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("fastfd_template_") + info->name() + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_ / "additional_chat_templates");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::string rendered(const ordered_json& tools = nullptr) const {
    return ChatTemplate::from_folder(folder_)->render(ordered_json::array(), tools, true,
                                                      ordered_json::object());
  }

  std::filesystem::path folder_;
};

TEST_F(ChatTemplateFolder, NoTemplateIsNull) {
  EXPECT_EQ(ChatTemplate::from_folder(folder_), nullptr);
  write("tokenizer_config.json", "{}");
  EXPECT_EQ(ChatTemplate::from_folder(folder_), nullptr);
}

TEST_F(ChatTemplateFolder, StringWithSpecialTokens) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}",
            "bos_token": "<b>", "eos_token": {"content": "<e>"}, "unk_token": null})");
  EXPECT_EQ(rendered(), "<b><e>");
}

TEST_F(ChatTemplateFolder, NamedTemplates) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(rendered(), "plain");
  EXPECT_EQ(rendered(ordered_json::array()), "tools");
}

TEST_F(ChatTemplateFolder, JinjaFileWinsOverConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<b>"})");
  write("chat_template.jinja", "file {{ bos_token }}\n");
  write("additional_chat_templates/tool_use.jinja", "file with tools");
  EXPECT_EQ(rendered(), "file <b>");
  EXPECT_EQ(rendered(ordered_json::array()), "file with tools");
}

TEST_F(ChatTemplateFolder, BrokenFilesAreNamed) {
  write("tokenizer_config.json", "{");
  EXPECT_THAT([&] { static_cast<void>(ChatTemplate::from_folder(folder_)); },
              testing::ThrowsMessage<TextError>(testing::HasSubstr("tokenizer_config.json")));
  write("tokenizer_config.json", R"({"chat_template": [1]})");
  EXPECT_THAT([&] { static_cast<void>(ChatTemplate::from_folder(folder_)); },
              testing::ThrowsMessage<TextError>(testing::HasSubstr("list of objects")));
  // The blob of a download that was broken off: not a model without a template.
  std::filesystem::create_symlink("../blobs/1", folder_ / "chat_template.jinja");
  EXPECT_THAT([&] { static_cast<void>(ChatTemplate::from_folder(folder_)); },
              testing::ThrowsMessage<TextError>(testing::HasSubstr("chat_template.jinja")));
}

}  // namespace
}  // namespace fastfd
