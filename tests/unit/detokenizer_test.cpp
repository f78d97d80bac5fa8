#include "fastfd/text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"
#include "tokenizer_golden.h"

namespace fastfd {
namespace {

const Tokenizer& atlas() {
  static const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  return tokenizer;
}

TEST(IncrementalDetokenizer, PiecesOfRandomTokensJoinToTheDecodedWhole) {
  std::mt19937 random(11);
  std::uniform_int_distribution<TokenId> any(-2, 6150);
  std::uniform_int_distribution<TokenId> single_byte(0, 255);
  std::uniform_int_distribution<int> length(0, 60);
  for (int round = 0; round < 2000; ++round) {
    const bool skip = round % 2 == 0;
    std::vector<TokenId> tokens(static_cast<std::size_t>(length(random)));
    for (TokenId& token : tokens) {
      token = round % 3 == 0 ? any(random) : single_byte(random);
    }
    IncrementalDetokenizer detokenizer(atlas(), skip);
    std::string joined;
    for (const TokenId token : tokens) {
      const std::string piece = detokenizer.push(token);
      ASSERT_TRUE(text::is_valid_utf8(piece));
      joined += piece;
    }
    joined += detokenizer.flush();
    ASSERT_EQ(joined, atlas().decode(tokens, skip));
    ASSERT_FALSE(detokenizer.has_pending());
  }
}

TEST(IncrementalDetokenizer, TextComesOutAsSoonAsItIsComplete) {
  const std::string text = "Grüße 🇯🇵 👨‍👩‍👧 你好 नमस्ते";
  IncrementalDetokenizer detokenizer(atlas());
  std::string bytes;
  std::string shown;
  for (const TokenId token : atlas().encode(text)) {
    bytes += atlas().token_to_bytes(token);
    detokenizer.push(token, shown);
    std::size_t complete = 0;
    while (complete < bytes.size()) {
      const auto c = text::decode_utf8(std::string_view(bytes).substr(complete));
      if (c.kind != text::Utf8Kind::kValid) {
        break;
      }
      complete += c.num_bytes;
    }
    EXPECT_EQ(shown, bytes.substr(0, complete));
  }
  EXPECT_EQ(shown + detokenizer.flush(), text);
}

TEST(IncrementalDetokenizer, IncompleteEndBecomesAReplacementCharacter) {
  const auto tokens = atlas().encode("🏴");  // no token of its own: four bytes
  ASSERT_GT(tokens.size(), 1U);
  IncrementalDetokenizer detokenizer(atlas());
  std::string shown;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    detokenizer.push(tokens[i], shown);
  }
  EXPECT_EQ(shown, "");
  EXPECT_TRUE(detokenizer.has_pending());
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(IncrementalDetokenizer, SpecialTokensAreSkippedOrShown) {
  IncrementalDetokenizer skipping(atlas());
  EXPECT_EQ(skipping.push(6143), "");
  IncrementalDetokenizer showing(atlas(), /*skip_special_tokens=*/false);
  EXPECT_EQ(showing.push(6143), "<|im_end|>");
}

}  // namespace
}  // namespace fastfd
