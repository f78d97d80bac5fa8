#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tokenizer_golden.h"

namespace fastfd {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// What loading says after `change` was made to a valid tokenizer.json.
std::string error_after(const std::function<void(json&)>& change) {
  json tokenizer = variant_json(tokenizer_golden().at("variants")[0]);
  change(tokenizer);
  try {
    static_cast<void>(Tokenizer::from_json(tokenizer.dump()));
  } catch (const TextError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenizerErrors, UnsupportedComponentsAreNamedWithTheSupportedOnes) {
  const auto nmt = error_after([](json& t) { t["normalizer"] = {{"type", "Nmt"}}; });
  EXPECT_THAT(nmt, HasSubstr("normalizer 'Nmt' is not supported; supported are NFC"));
  const auto bert = error_after([](json& t) {
    t["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  });
  EXPECT_THAT(bert, HasSubstr("pre-tokenizer 'BertPreTokenizer' is not supported; supported are"));
  const auto post = error_after([](json& t) { t["post_processor"] = {{"type", "Other"}}; });
  EXPECT_THAT(post, HasSubstr("post-processor 'Other' is not supported; supported are ByteLevel"));
  const auto word_piece = error_after([](json& t) { t["model"]["type"] = "WordPiece"; });
  EXPECT_THAT(word_piece, HasSubstr("tokenizer model 'WordPiece' is not supported"));
  const auto decoder = error_after([](json& t) { t["decoder"]["type"] = "CTC"; });
  EXPECT_THAT(decoder, HasSubstr("decoder 'CTC' is not supported; supported are ByteLevel"));
  const auto dropout = error_after([](json& t) { t["model"]["dropout"] = 0.1; });
  EXPECT_THAT(dropout, HasSubstr("'dropout' is not supported"));
}

TEST(TokenizerErrors, ByteLevelMustBeLast) {
  EXPECT_THAT(error_after([](json& t) {
                t["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
              }),
              HasSubstr("'Digits' after ByteLevel is not supported"));
}

TEST(TokenizerErrors, DecodersThatCantBeFollowedAreNamed) {
  const auto with_decoders = [](const json& decoders) {
    return error_after([&](json& t) {
      t["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    });
  };
  const json fuse = {{"type", "Fuse"}};
  const json fallback = {{"type", "ByteFallback"}};
  const json words = {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "c"}};
  EXPECT_THAT(with_decoders({fuse, fallback}),
              HasSubstr("decoder.decoders[1]: decoder 'ByteFallback' at this place"));
  EXPECT_THAT(with_decoders({fallback, fallback}), HasSubstr("'ByteFallback' at this place"));
  EXPECT_THAT(with_decoders({fuse, words}),
              HasSubstr("decoder.decoders[1]: decoder 'Replace' of more than a single character"));
  EXPECT_THAT(with_decoders({words, fallback, fuse, fuse}), HasSubstr("no error"));
  EXPECT_THAT(error_after([](json& t) { t["decoder"] = nullptr; }),
              HasSubstr("decoder is missing"));
}

TEST(TokenizerErrors, WrongTypesNameTheKey) {
  const auto set = [](const char* pointer, const json& value) {
    return error_after([&](json& t) { t[json::json_pointer(pointer)] = value; });
  };
  EXPECT_THAT(set("/model", 5), HasSubstr("model is 5, not an object"));
  EXPECT_THAT(set("/model/vocab", 7), HasSubstr("model.vocab is 7, not an object"));
  EXPECT_THAT(set("/model/vocab/zz", "x"), HasSubstr("the id of token 'zz' is \"x\""));
  EXPECT_THAT(set("/model/merges", "x"), HasSubstr("model.merges is \"x\", not a list"));
  EXPECT_THAT(set("/model/merges/3", json{1, 2}), HasSubstr("merge 3 is [1,2]"));
  EXPECT_THAT(set("/model/byte_fallback", "yes"),
              HasSubstr("model.byte_fallback is \"yes\", not true or false"));
  EXPECT_THAT(set("/model/unk_token", 3), HasSubstr("model.unk_token is 3, not a string"));
  EXPECT_THAT(set("/normalizer", json::array()), HasSubstr("normalizer is [], not an object"));
  EXPECT_THAT(set("/pre_tokenizer/pretokenizers/0/pattern", 1),
              HasSubstr("pre_tokenizer.pretokenizers[0].pattern is 1, not an object"));
  EXPECT_THAT(set("/pre_tokenizer/pretokenizers/0/behavior", nullptr),
              HasSubstr("pre_tokenizer.pretokenizers[0].behavior is missing"));
  EXPECT_THAT(set("/pre_tokenizer", json{{"type", "Metaspace"}, {"replacement", "__"}}),
              HasSubstr("pre_tokenizer.replacement is \"__\", not a single character"));
  EXPECT_THAT(set("/added_tokens/1/content", false),
              HasSubstr("added_tokens[1].content is false, not a string"));
  EXPECT_THAT(set("/added_tokens/0/lstrip", 0), HasSubstr("added_tokens[0].lstrip is 0"));
  EXPECT_THAT(set("/post_processor", json{{"type", "TemplateProcessing"}}),
              HasSubstr("post_processor.single is missing"));
  EXPECT_THAT(
      set("/post_processor",
          json{{"type", "RobertaProcessing"}, {"cls", {"<s>", 1 << 23}}, {"sep", {"</s>", 2}}}),
      HasSubstr("post_processor adds token 8388608"));
}

TEST(TokenizerErrors, BrokenFiles) {
  EXPECT_THROW(static_cast<void>(Tokenizer::from_json("{\"model\": ")), TextError);
  EXPECT_THROW(static_cast<void>(Tokenizer::from_json("[]")), TextError);
  EXPECT_THROW(static_cast<void>(Tokenizer::from_folder("/nonexistent")), TextError);
  EXPECT_THAT(error_after([](json& t) { t["model"]["merges"].push_back("a b c"); }),
              HasSubstr("it must be two tokens with one space between them"));
  EXPECT_THAT(error_after([](json& t) {
                t["model"]["merges"].push_back({"a", "no such"});
              }),
              HasSubstr("needs token 'no such', which is not in the vocabulary"));
  EXPECT_THAT(error_after([](json& t) { t["model"]["vocab"]["zz"] = -3; }),
              HasSubstr("token 'zz' has id -3"));
  EXPECT_THAT(error_after([](json& t) { t["model"]["vocab"]["zz"] = 1LL << 40; }),
              HasSubstr("token 'zz' has id"));
  EXPECT_THAT(error_after([](json& t) { t["model"]["vocab"] = 7; }), HasSubstr("cannot be used"));
  EXPECT_THAT(error_after([](json& t) { t["added_tokens"][0].erase("id"); }), HasSubstr("id"));
}

// Opening a FIFO waits for a writer; a test that hangs here has found the old fault.
TEST(TokenizerErrors, WhatIsNoFileIsRefusedAtOnce) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("fastfd_no_file_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto load_error = [&folder] {
    try {
      static_cast<void>(Tokenizer::from_folder(folder));
    } catch (const TextError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  ASSERT_EQ(::mkfifo((folder / "tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(load_error(), HasSubstr("tokenizer.json is not a regular file"));
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::create_directory(folder / "tokenizer.json");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer.json is not a regular file"));
  std::filesystem::remove(folder / "tokenizer.json");
  std::ofstream(folder / "tokenizer.json") << variant_json(variant_named("qwen2"));
  ASSERT_EQ(::mkfifo((folder / "tokenizer_config.json").c_str(), 0600), 0);
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json is not a regular file"));
  std::filesystem::remove(folder / "tokenizer_config.json");
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": {"content": 5}})";
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json: eos_token is neither a string"));
  std::filesystem::remove(folder / "tokenizer_config.json");
  std::filesystem::create_symlink("../blobs/1", folder / "tokenizer_config.json");
  EXPECT_THAT(load_error(), AllOf(HasSubstr("tokenizer_config.json: No such file"),
                                  HasSubstr("finish the download")));
  std::ofstream(folder / "tokenizer.json")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 7031673\n";
  std::filesystem::remove(folder / "tokenizer_config.json");
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr("tokenizer.json is a Git LFS pointer"), HasSubstr("`git lfs pull`")));
  std::filesystem::remove_all(folder);
}

TEST(TokenizerErrors, DeeplyNestedFilesAreRefused) {
  const std::string valid = variant_json(variant_named("qwen2")).dump();
  for (const auto& [key, list] :
       {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
        std::pair("post_processor", "processors"), std::pair("decoder", "decoders")}) {
    constexpr int kLevels = 100'000;  // a call each would be more than a stack holds
    std::string nested;
    for (int i = 0; i < kLevels; ++i) {
      nested += fmt::format(R"({{"type":"Sequence","{}":[)", list);
    }
    for (int i = 0; i < kLevels; ++i) {
      nested += "]}";
    }
    json tokenizer = json::parse(valid);
    tokenizer[key] = "@";
    std::string text = tokenizer.dump();
    text.replace(text.find("\"@\""), 3, nested);
    EXPECT_THAT([&] { static_cast<void>(Tokenizer::from_json(text)); },
                testing::ThrowsMessage<TextError>(HasSubstr("nested deeper than 64 levels")))
        << key;
  }
  const std::string config =
      R"({"added_tokens_decoder":)" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_THAT([&] { static_cast<void>(Tokenizer::from_json(valid, config)); },
              testing::ThrowsMessage<TextError>(
                  HasSubstr("tokenizer_config.json is nested deeper than 64 levels")));
  // Brackets in texts nest nothing.
  json brackets = json::parse(valid);
  brackets["model"]["vocab"]["\\\"" + std::string(100, '[')] = 7;
  EXPECT_NO_THROW(static_cast<void>(Tokenizer::from_json(brackets.dump())));
}

// Each step doubles the text: thirty would fill all memory.
TEST(TokenizerErrors, NormalizersThatMultiplyTextFailCleanly) {
  json tokenizer = variant_json(variant_named("qwen2"));
  const json doubles = {{"type", "Replace"}, {"pattern", {{"String", "l"}}}, {"content", "ll"}};
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", json(40, doubles)}};
  const Tokenizer hostile = Tokenizer::from_json(tokenizer.dump());
  EXPECT_THAT([&] { static_cast<void>(hostile.encode("hello")); },
              testing::ThrowsMessage<TextError>(HasSubstr("Replace makes more than")));
  EXPECT_EQ(hostile.decode(hostile.encode("none")), "none");
}

TEST(TokenizerErrors, PatternsThatCannotBeUsed) {
  const auto with_pattern = [](const std::string& pattern) {
    return error_after(
        [&](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; });
  };
  EXPECT_THAT(with_pattern("(unclosed"),
              HasSubstr("regular expression '(unclosed' cannot be used"));
  EXPECT_THAT(with_pattern("[a-z&&[^b]"), HasSubstr("character class without end"));
  EXPECT_THAT(with_pattern("\\"), HasSubstr("backslash at its end"));
  EXPECT_THAT(with_pattern("\\p{Klingon}"), HasSubstr("cannot be used"));
}

TEST(TokenizerErrors, PatternThatBacktracksWithoutBoundFailsCleanly) {
  json tokenizer = variant_json(tokenizer_golden().at("variants")[0]);
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a|a|b|ab)*c";
  const Tokenizer hostile = Tokenizer::from_json(tokenizer.dump());
  EXPECT_THAT([&] { static_cast<void>(hostile.encode(std::string(4000, 'a') + "dc")); },
              testing::ThrowsMessage<TextError>(HasSubstr("backtracks too much for this text")));
  EXPECT_EQ(hostile.decode(hostile.encode("aabc")), "aabc");
}

}  // namespace
}  // namespace fastfd
