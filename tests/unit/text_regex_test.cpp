#include <gtest/gtest.h>

#include <string>

#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

std::string matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern);
  RegexScratch scratch;
  std::string result;
  std::size_t from = 0;
  while (const auto match = regex.find(text, from, scratch)) {
    result.append("<").append(text.substr(match->begin, match->end - match->begin)).append(">");
    from = match->end;
    if (match->begin == match->end && ++from > text.size()) {
      break;
    }
  }
  return result;
}

TEST(OnigurumaSyntax, WhatDiffersFromPcre2IsTranslated) {
  EXPECT_EQ(matches(R"(\s)", "a\u180Eb\u00A0c"), "<\u00A0>");
  EXPECT_EQ(matches(R"([^\s]+)", "a\u180Eb c"), "<a\u180Eb><c>");
  EXPECT_EQ(matches(R"(\h+)", "xyz1aF g"), "<1aF>");
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "1234567"), "<1234567>");
  EXPECT_EQ(matches(R"((?:ab){2}+)", "ababababab"), "<abababab>");
  EXPECT_EQ(matches(R"(a{,2})", "aaa"), "<aa><a><>");
  EXPECT_EQ(matches(R"(\u4e00)", "一二"), "<一>");
  EXPECT_EQ(matches(R"(\p{Han}+)", "漢、字"), "<漢><字>");
  EXPECT_EQ(matches(R"((?m:a.b))", "a\nb"), "<a\nb>");
  EXPECT_EQ(matches(R"(^b)", "a\nb"), "<b>");
  EXPECT_EQ(matches(R"([\w]+|\W)", "e\u0301é_1-"), "<e\u0301é_1><->");
  EXPECT_EQ(matches(R"([]x]+)", "a]x"), "<]x>");
  EXPECT_EQ(matches(R"([[:alpha:]]+)", "ab1"), "<ab>");
  EXPECT_EQ(matches(R"(\p{^L}+|\P{^Lu}+)", "aB1"), "<B><1>");
  EXPECT_EQ(matches(R"(x{)", "x{"), "<x{>");
}

TEST(Unicode, NormalisationForms) {
  const auto form = [](std::string_view text, NormalizationForm kind) {
    std::string buffer;
    return std::string(normalize(text, kind, buffer));
  };
  EXPECT_EQ(form("e\u0301 \u212B \u1100\u1161\u11A8", NormalizationForm::kNfc),
            "\u00E9 \u00C5 \uAC01");
  EXPECT_EQ(form("\u00E9", NormalizationForm::kNfd), "e\u0301");
  EXPECT_EQ(form("\uFB01\u00B2", NormalizationForm::kNfkc), "fi2");
  EXPECT_EQ(form("\uFF21\u00E9", NormalizationForm::kNfkd), "Ae\u0301");
  // Text that is in the form already is not copied.
  const std::string text = "plain, 你好, привет";
  std::string buffer;
  EXPECT_EQ(normalize(text, NormalizationForm::kNfc, buffer).data(), text.data());
}

TEST(Utf8, CutsInvalidTextIntoMaximalSubparts) {
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98"), "a\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x41"), "\uFFFD\x41");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82\xE2\x82\xAC"), "\uFFFD\u20AC");
}

}  // namespace
}  // namespace fastfd::text
