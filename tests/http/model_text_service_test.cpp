#include "fastfd/gateway/model_text_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

using ::testing::ElementsAre;

class ModelTextServiceTest : public ::testing::Test {
 protected:
  /// What a client sees of `tokens`, and whether a stop string ended it.
  std::pair<std::string, bool> stream(const std::vector<TokenId>& tokens,
                                      const std::vector<std::string>& stops,
                                      std::size_t min_tokens = 0) const {
    const auto text_stream = text_->new_stream(stops);
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
  const std::vector<ChatMessage> chat = {{"user", "Hi"}, {"assistant", "Once"}};
  EXPECT_EQ(text_->render_chat({chat[0]}, {}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  EXPECT_EQ(text_->render_chat(chat, options),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce");
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
