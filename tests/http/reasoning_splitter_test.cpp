#include "gateway/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace fastfd::gateway {
namespace {

struct Answer {
  AnswerStart start;
  const char* text;
  const char* reasoning;
  const char* content;
};

constexpr Answer kAnswers[] = {
    {AnswerStart::kUndecided, "<think>\nhm\n</think>\n\nYes.", "\nhm\n", "\n\nYes."},
    {AnswerStart::kUndecided, "\n <think>hm</think>Yes.", "hm", "Yes."},
    {AnswerStart::kUndecided, "<think></think>Yes.", "", "Yes."},
    {AnswerStart::kUndecided, "Yes.", "", "Yes."},
    {AnswerStart::kUndecided, " Yes, <think> is a tag. </think>", "",
     " Yes, <think> is a tag. </think>"},
    {AnswerStart::kUndecided, "<thinking>Yes.", "", "<thinking>Yes."},
    {AnswerStart::kUndecided, "<thi", "", "<thi"},
    {AnswerStart::kUndecided, "  ", "", "  "},
    {AnswerStart::kUndecided, "<think>cut off", "cut off", ""},
    {AnswerStart::kUndecided, "<think>cut </thin", "cut </thin", ""},
    {AnswerStart::kUndecided, "<think>a </thin</think>b</think>c", "a </thin", "b</think>c"},
    {AnswerStart::kUndecided, "<think>a<</think><", "a<", "<"},
    {AnswerStart::kReasoning, "hm</think>Yes.", "hm", "Yes."},
    {AnswerStart::kReasoning, "<think>hm</think>Yes.", "hm", "Yes."},
    {AnswerStart::kReasoning, "cut off", "cut off", ""},
    {AnswerStart::kReasoning, "<thi", "<thi", ""},
    {AnswerStart::kReasoning, "</think>Yes.", "", "Yes."},
    {AnswerStart::kReasoning, "", "", ""},
    {AnswerStart::kContent, "<think>hm</think>Yes.", "", "<think>hm</think>Yes."},
};

std::pair<std::string, std::string> split_in_three(const Answer& answer, std::size_t first,
                                                   std::size_t second) {
  const std::string text = answer.text;
  ReasoningSplitter splitter(answer.start);
  std::pair<std::string, std::string> result;
  const auto take = [&result](const ReasoningSplitter::Piece& piece) {
    result.first += piece.reasoning;
    result.second += piece.content;
  };
  take(splitter.push(text.substr(0, first)));
  take(splitter.push(text.substr(first, second - first)));
  take(splitter.push(text.substr(second)));
  take(splitter.finish());
  return result;
}

TEST(ReasoningSplitterTest, TheOutcomeDoesNotDependOnThePieces) {
  for (const Answer& answer : kAnswers) {
    const std::size_t size = std::string(answer.text).size();
    for (std::size_t first = 0; first <= size; ++first) {
      for (std::size_t second = first; second <= size; ++second) {
        const auto [reasoning, content] = split_in_three(answer, first, second);
        ASSERT_EQ(reasoning, answer.reasoning) << answer.text << ' ' << first << ' ' << second;
        ASSERT_EQ(content, answer.content) << answer.text << ' ' << first << ' ' << second;
      }
    }
  }
}

TEST(ReasoningSplitterTest, WhatIsDecidedLeavesAtOnce) {
  ReasoningSplitter splitter(AnswerStart::kUndecided);
  EXPECT_EQ(splitter.push("<think>ab").reasoning, "ab");
  EXPECT_EQ(splitter.push("c <").reasoning, "c ");
  EXPECT_EQ(splitter.push("b>").reasoning, "<b>");
  const auto piece = splitter.push("</think>d");
  EXPECT_EQ(piece.reasoning, "");
  EXPECT_EQ(piece.content, "d");
  EXPECT_EQ(splitter.push("<").content, "<");
}

}  // namespace
}  // namespace fastfd::gateway
