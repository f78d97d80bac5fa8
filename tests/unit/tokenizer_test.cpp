#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "fastfd/text/detokenizer.h"
#include "tokenizer_golden.h"

namespace fastfd {
namespace {

using nlohmann::json;
using testing::ElementsAreArray;

std::vector<TokenId> ids_of(const json& ids) { return ids.get<std::vector<TokenId>>(); }

constexpr std::uint64_t kFnvStart = 0xCBF29CE484222325ULL;

std::uint64_t fnv(const std::vector<TokenId>& ids, std::uint64_t value = kFnvStart) {
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<std::uint32_t>(id) >> shift) & 0xFFU)) * 0x100000001B3ULL;
    }
  }
  return value;
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string utf8_of(char32_t c) {
  const json text =
      json::parse(c < 0x10000 ? fmt::format("\"\\u{:04x}\"", static_cast<unsigned>(c))
                              : fmt::format("\"\\u{:04x}\\u{:04x}\"",
                                            0xD7C0U + (static_cast<unsigned>(c) >> 10),
                                            0xDC00U + (static_cast<unsigned>(c) & 0x3FFU)));
  return text.get<std::string>();
}

class TokenizerVariants : public testing::TestWithParam<std::size_t> {
 protected:
  const json& variant() const { return tokenizer_golden().at("variants")[GetParam()]; }
  const json& golden() const { return variant().at("golden"); }
};

/// Variants in the style of whole models; the others try single components.
class TokenizerModels : public TokenizerVariants {};
class TokenizerPosts : public TokenizerVariants {};
class TokenizerFallbacks : public TokenizerVariants {};

/// Text of `ids` as it comes behind `prompt`.
std::string joined_pieces(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt,
                          const std::vector<TokenId>& ids) {
  IncrementalDetokenizer detokenizer(tokenizer);
  detokenizer.continue_from(prompt);
  std::string text;
  for (const TokenId id : ids) {
    detokenizer.push(id, text);
  }
  return text + detokenizer.flush();
}

TEST_P(TokenizerVariants, EncodesAsTheReference) {
  const Tokenizer tokenizer = load_variant(variant());
  const json& texts = tokenizer_golden().at("texts");
  for (std::size_t i = 0; i < golden().at("ids").size(); ++i) {
    const auto text = texts[i].get<std::string>();
    EXPECT_THAT(tokenizer.encode(text), ElementsAreArray(ids_of(golden().at("ids")[i])))
        << i << ": " << text;
  }
}

TEST_P(TokenizerVariants, DecodesAsTheReference) {
  const Tokenizer tokenizer = load_variant(variant());
  for (std::size_t i = 0; i < golden().at("decoded").size(); ++i) {
    EXPECT_EQ(tokenizer.decode(ids_of(golden().at("ids")[i]), /*skip_special_tokens=*/true),
              golden().at("decoded")[i].get<std::string>())
        << i;
  }
}

TEST_P(TokenizerModels, SpecialTokensCanBeOrdinaryText) {
  const Tokenizer tokenizer = load_variant(variant());
  std::size_t next = 0;
  for (const json& entry : tokenizer_golden().at("texts")) {
    const auto text = entry.get<std::string>();
    if (text.find('<') != text.npos) {
      EXPECT_THAT(tokenizer.encode(text, /*parse_special=*/false),
                  ElementsAreArray(ids_of(golden().at("plain_ids")[next])))
          << text;
      ++next;
    }
  }
  EXPECT_EQ(next, golden().at("plain_ids").size());
}

TEST_P(TokenizerFallbacks, RunsOfFallbackBytesAreDecodedAsTheReference) {
  const Tokenizer tokenizer = load_variant(variant());
  for (const json& entry : golden().at("token_lists")) {
    EXPECT_EQ(tokenizer.decode(ids_of(entry[0]), /*skip_special_tokens=*/true),
              entry[1].get<std::string>())
        << entry[0];
  }
}

TEST_P(TokenizerFallbacks, PiecesJoinToTheDecodedWhole) {
  const Tokenizer tokenizer = load_variant(variant());
  for (const json& entry : golden().at("token_lists")) {
    const auto ids = ids_of(entry[0]);
    const auto text = entry[1].get<std::string>();
    if (text.find("\uFFFD") != text.npos) {
      continue;  // characters of a run leave before it is known to be no text
    }
    EXPECT_EQ(joined_pieces(tokenizer, {}, ids), text) << entry[0];
    for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
      const std::vector<TokenId> prompt(ids.begin(), ids.begin() + static_cast<long>(cut));
      const std::string prompt_text = tokenizer.decode(prompt, true);
      if (prompt_text.find("\uFFFD") == text.npos) {
        EXPECT_EQ(prompt_text + joined_pieces(tokenizer, prompt,
                                              {ids.begin() + static_cast<long>(cut), ids.end()}),
                  text)
            << entry[0] << " cut at " << cut;
      }
    }
  }
}

TEST_P(TokenizerPosts, PostProcessorAddsItsTokens) {
  const Tokenizer tokenizer = load_variant(variant());
  EXPECT_THAT(tokenizer.encode("Hello", true, /*add_special_tokens=*/true),
              ElementsAreArray(ids_of(golden().at("with_post"))));
}

TEST_P(TokenizerModels, LongTextsAreEqual) {
  const Tokenizer tokenizer = load_variant(variant());
  for (std::size_t i = 0; i < golden().at("long").size(); ++i) {
    const json& recipe = tokenizer_golden().at("long")[i];
    std::string text;
    for (int n = 0; n < recipe[1].get<int>(); ++n) {
      text += recipe[0].get<std::string>();
    }
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(ids.size(), golden().at("long")[i][0].get<std::size_t>()) << recipe;
    EXPECT_EQ(std::to_string(fnv(ids)), golden().at("long")[i][1].get<std::string>()) << recipe;
  }
}

std::string variant_name(const testing::TestParamInfo<std::size_t>& param) {
  auto name = tokenizer_golden().at("variants")[param.param].at("name").get<std::string>();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::size_t> variants_with(const char* key) {
  std::vector<std::size_t> indices;
  const json& variants = tokenizer_golden().at("variants");
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].at("golden").contains(key)) {
      indices.push_back(i);
    }
  }
  return indices;
}

INSTANTIATE_TEST_SUITE_P(Golden, TokenizerVariants, testing::ValuesIn(variants_with("ids")),
                         variant_name);
INSTANTIATE_TEST_SUITE_P(Golden, TokenizerPosts, testing::ValuesIn(variants_with("with_post")),
                         variant_name);
INSTANTIATE_TEST_SUITE_P(Golden, TokenizerFallbacks,
                         testing::ValuesIn(variants_with("token_lists")), variant_name);
INSTANTIATE_TEST_SUITE_P(Golden, TokenizerModels, testing::ValuesIn(variants_with("long")),
                         variant_name);

TEST(Tokenizer, InvalidUtf8IsReplacedAsPythonDoes) {
  const json& variant = tokenizer_golden().at("variants")[0];
  const Tokenizer tokenizer = load_variant(variant);
  const json& invalid = tokenizer_golden().at("invalid");
  for (std::size_t i = 0; i < invalid.size(); ++i) {
    const std::string bytes = bytes_of_hex(invalid[i].get<std::string>());
    EXPECT_THAT(tokenizer.encode(bytes), ElementsAreArray(ids_of(variant.at("invalid_ids")[i])))
        << invalid[i];
  }
}

TEST(Tokenizer, EveryAssignedCharacterIsEncodedAsTheReference) {
  const json& variant = tokenizer_golden().at("variants")[0];
  const Tokenizer tokenizer = load_variant(variant);
  for (const json& block : variant.at("code_points")) {
    std::uint64_t hash = kFnvStart;
    for (const json& range : block.at("ranges")) {
      for (auto c = range[0].get<char32_t>(); c <= range[1].get<char32_t>(); ++c) {
        const std::string s = utf8_of(c);
        hash = fnv(tokenizer.encode("a" + s + s + " " + s + "1"), hash);
      }
    }
    EXPECT_EQ(std::to_string(hash), block.at("hash").get<std::string>())
        << "block of " << block.at("ranges")[0];
  }
}

TEST(Tokenizer, TokensOfSentencePieceVocabulariesHaveTheirTextAsBytes) {
  const Tokenizer tokenizer = load_variant(variant_named("llama2"));
  EXPECT_EQ(tokenizer.token_to_bytes(tokenizer.token_id("\u2581").value()), " ");
  EXPECT_EQ(tokenizer.token_to_bytes(tokenizer.token_id("<0xE4>").value()), "\xE4");
  EXPECT_EQ(tokenizer.token_to_bytes(tokenizer.token_id("<s>").value()), "<s>");
  const Tokenizer old_form = load_variant(variant_named("metaspace-old"));
  EXPECT_EQ(old_form.token_to_bytes(old_form.token_id("\u2581\u2581").value()), "  ");
}

// transformers makes the post-processor of Llama's tokenizer classes from two switches;
// DeepSeek-V3's tokenizer.json alone adds no token.
TEST(Tokenizer, LlamaClassesObeyTheirSwitches) {
  const auto tokens = [](const char* variant, const json& config) {
    const Tokenizer tokenizer =
        Tokenizer::from_json(variant_json(variant_named(variant)).dump(), config.dump());
    return tokenizer.encode("a", true, /*add_special_tokens=*/true);
  };
  const json config = {{"tokenizer_class", "LlamaTokenizerFast"},
                       {"bos_token", {{"content", "<s>"}}},
                       {"eos_token", "</s>"}};
  const auto with = [&config](const json& more) {
    json changed = config;
    changed.update(more);
    return changed;
  };
  const auto plain = tokens("mistral", config);
  EXPECT_EQ(plain.front(), tokens("mistral", json::object()).front());
  EXPECT_EQ(tokens("mistral", with({{"add_bos_token", true}})).front(), 1);
  EXPECT_EQ(tokens("mistral", with({{"add_eos_token", true}})).back(), 2);
  EXPECT_EQ(tokens("llama2", config).front(), 1);
  EXPECT_NE(tokens("llama2", with({{"add_bos_token", false}})).front(), 1);
  EXPECT_EQ(tokens("mistral", with({{"add_bos_token", true}, {"tokenizer_class", "Other"}})),
            plain);
}

TEST(Tokenizer, AtlasMoeGoldenPrompts) {
  const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  const json golden = read_source_json("models/atlas-moe/golden.json");
  ASSERT_EQ(golden.at("prompts").size(), 48U);
  for (const json& prompt : golden.at("prompts")) {
    const auto text = prompt.at("text").get<std::string>();
    EXPECT_THAT(tokenizer.encode(text), ElementsAreArray(ids_of(prompt.at("prompt_ids"))))
        << prompt.at("id");
    EXPECT_EQ(tokenizer.decode(ids_of(prompt.at("output_ids"))),
              prompt.at("output_text").get<std::string>());
  }
}

TEST(Tokenizer, AtlasMoeCorpus) {
  const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  const json& ids = tokenizer_golden().at("atlas").at("ids");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto text = tokenizer_golden().at("texts")[i].get<std::string>();
    EXPECT_THAT(tokenizer.encode(text), ElementsAreArray(ids_of(ids[i]))) << text;
  }
}

TEST(Tokenizer, VocabularyQueries) {
  const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  EXPECT_EQ(tokenizer.vocab_size(), 6144U);
  EXPECT_EQ(tokenizer.token_id("<|im_end|>"), 6143);
  EXPECT_EQ(tokenizer.eos_token(), 6143);
  EXPECT_EQ(tokenizer.pad_token(), 6141);
  EXPECT_EQ(tokenizer.bos_token(), std::nullopt);
  EXPECT_EQ(tokenizer.token_id(" the"), tokenizer.encode(" the").at(0));
  EXPECT_EQ(tokenizer.token_id("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(6142));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(6144));
  EXPECT_EQ(tokenizer.token_to_bytes(6142), "<|im_start|>");
  EXPECT_EQ(tokenizer.token_to_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_to_bytes(1 << 30), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{6142, -5, 70000, 6143}),
            "<|im_start|><|im_end|>");
  EXPECT_EQ(tokenizer.special_tokens().at("pad_token"), "<|endoftext|>");
}

// A word of a megabyte: with quadratic merging this would take hours.
TEST(Tokenizer, MegabyteOfOneLetterIsEncoded) {
  const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

// Forty thousand words: slots of the word cache are taken over all the time.
TEST(Tokenizer, CachedWordsAreEncodedAsTheFirstTime) {
  const Tokenizer tokenizer =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  std::string text;
  for (int i = 0; i < 40000; ++i) {
    text += fmt::format(" w{:x}q", i * 7919);
  }
  const auto first = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.encode(text), first);
  const Tokenizer fresh =
      Tokenizer::from_folder(std::string(FASTFD_SOURCE_DIR) + "/models/atlas-moe");
  std::vector<TokenId> one_by_one;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin + 1), text.size());
    const auto word = fresh.encode(text.substr(begin, end - begin));
    one_by_one.insert(one_by_one.end(), word.begin(), word.end());
    begin = end;
  }
  EXPECT_EQ(one_by_one, first);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const json& variant = tokenizer_golden().at("variants")[0];
  const Tokenizer tokenizer = load_variant(variant);
  const json& texts = tokenizer_golden().at("texts");
  const json& ids = variant.at("golden").at("ids");
  std::vector<std::thread> threads;
  std::vector<std::size_t> differences(4, 0);
  for (std::size_t t = 0; t < differences.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t n = 0; n < 2 * texts.size(); ++n) {
        const std::size_t i = (n + t * 17) % texts.size();
        differences[t] += static_cast<std::size_t>(
            tokenizer.encode(texts[i].get_ref<const std::string&>()) != ids_of(ids[i]));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(differences, testing::Each(0U));
}

}  // namespace
}  // namespace fastfd
