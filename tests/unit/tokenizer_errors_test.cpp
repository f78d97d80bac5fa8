#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tokenizer_golden.h"

namespace fastfd {
namespace {

using nlohmann::json;
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
  const auto metaspace = error_after([](json& t) { t["pre_tokenizer"] = {{"type", "Metaspace"}}; });
  EXPECT_THAT(metaspace, HasSubstr("pre-tokenizer 'Metaspace' is not supported; supported are"));
  const auto bert = error_after([](json& t) {
    t["post_processor"] = {{"type", "BertProcessing"}};
  });
  EXPECT_THAT(bert, HasSubstr("post-processor 'BertProcessing' is not supported"));
  const auto word_piece = error_after([](json& t) { t["model"]["type"] = "WordPiece"; });
  EXPECT_THAT(word_piece, HasSubstr("tokenizer model 'WordPiece' is not supported"));
  const auto decoder = error_after([](json& t) { t["decoder"]["type"] = "Metaspace"; });
  EXPECT_THAT(decoder, HasSubstr("decoder 'Metaspace' is not supported"));
  const auto fallback = error_after([](json& t) { t["model"]["byte_fallback"] = true; });
  EXPECT_THAT(fallback, HasSubstr("'byte_fallback' is not supported"));
  const auto dropout = error_after([](json& t) { t["model"]["dropout"] = 0.1; });
  EXPECT_THAT(dropout, HasSubstr("'dropout' is not supported"));
}

TEST(TokenizerErrors, ByteLevelMustBeThereAndLast) {
  EXPECT_THAT(error_after([](json& t) { t["pre_tokenizer"] = nullptr; }),
              HasSubstr("must contain a ByteLevel step"));
  EXPECT_THAT(error_after([](json& t) {
                t["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
              }),
              HasSubstr("'Digits' after ByteLevel is not supported"));
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

TEST(TokenizerErrors, PatternsThatCannotBeUsed) {
  const auto with_pattern = [](const std::string& pattern) {
    return error_after(
        [&](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; });
  };
  EXPECT_THAT(with_pattern("(unclosed"),
              HasSubstr("regular expression '(unclosed' cannot be used"));
  EXPECT_THAT(with_pattern("[a-z&&[^b]]"), HasSubstr("class intersection"));
  EXPECT_THAT(with_pattern("[a[bc]]"), HasSubstr("class inside a class"));
  EXPECT_THAT(with_pattern("[\\W]"), HasSubstr("\\W inside a class"));
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
