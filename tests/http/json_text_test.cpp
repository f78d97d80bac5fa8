#include "gateway/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace fastfd::gateway {
namespace {

std::string as_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonTextTest, EveryAsciiCharacterSurvives) {
  std::string text;
  for (int c = 0; c < 128; ++c) {
    text += static_cast<char>(c);
  }
  EXPECT_EQ(nlohmann::json::parse(as_json(text)).get<std::string>(), text);
  EXPECT_EQ(as_json("a\"b\\c\n\x01"), R"("a\"b\\c\n\u0001")");
}

TEST(JsonTextTest, UnicodeSurvives) {
  const std::string text = "wörld \xF0\x9F\x8C\x8D \xE2\x80\xA8 end";
  EXPECT_EQ(nlohmann::json::parse(as_json(text)).get<std::string>(), text);
}

TEST(JsonTextTest, FloatsReadBackEqual) {
  for (const float value : {0.0F, -0.5F, 1e-30F, -12.345678F, 3.4e38F}) {
    std::string out;
    append_json_float(out, value);
    EXPECT_EQ(nlohmann::json::parse(out).get<float>(), value) << out;
  }
  for (const float value : {INFINITY, -INFINITY, NAN}) {
    std::string out;
    append_json_float(out, value);
    EXPECT_TRUE(nlohmann::json::accept(out)) << out;
  }
}

TEST(JsonTextTest, Utf8IsCheckedStrictly) {
  for (const char* good :
       {"", "abc", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x8C\x8D", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC3", "\xC0\x80", "\xE2\x82", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xFF", "a\xC3(b"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
  EXPECT_EQ(count_code_points("a\xC3\xA9\xF0\x9F\x8C\x8D"), 3U);
}

}  // namespace
}  // namespace fastfd::gateway
