#include <gtest/gtest.h>

#include <random>

#include "fastfd/text/stop_matcher.h"
#include "text/utf8.h"

namespace fastfd {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::size_t> stop;
  friend bool operator==(const Outcome&, const Outcome&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
    return out << '"' << outcome.text << "\" stop " << (outcome.stop ? int(*outcome.stop) : -1);
  }
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStringMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const auto output = matcher.push(piece);
    outcome.text += output.text;
    if (output.stop) {
      EXPECT_FALSE(outcome.stop.has_value());
      outcome.stop = output.stop;
    }
  }
  outcome.text += matcher.flush();
  return outcome;
}

TEST(StopStringMatcher, TextPassesThroughWithoutStops) {
  EXPECT_EQ(run({}, {"a", "b"}), (Outcome{"ab", std::nullopt}));
  EXPECT_EQ(run({""}, {"a", "b"}), (Outcome{"ab", std::nullopt}));
}

TEST(StopStringMatcher, StopAcrossPiecesIsNotEmitted) {
  EXPECT_EQ(run({"END"}, {"text E", "N", "D more", "even more"}), (Outcome{"text ", 0}));
}

TEST(StopStringMatcher, PossibleStartsAreHeldBackAndReleased) {
  StopStringMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.push("Hi\n").text, "Hi");
  EXPECT_EQ(matcher.num_held(), 1U);
  EXPECT_EQ(matcher.push("\nUs").text, "");
  EXPECT_EQ(matcher.push("\n").text, "\n\nUs");
  EXPECT_EQ(matcher.flush(), "\n");
}

TEST(StopStringMatcher, NothingComesAfterAStop) {
  StopStringMatcher matcher({"x"});
  EXPECT_EQ(matcher.push("axb").text, "a");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more").text, "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStringMatcher, FirstToEndWinsAndLongestOfThose) {
  EXPECT_EQ(run({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", 1}));
  EXPECT_EQ(run({"bc", "abc"}, {"xa", "bc"}), (Outcome{"x", 1}));
  EXPECT_EQ(run({"abab", "b!"}, {"aba", "b!"}), (Outcome{"", 0}));
  EXPECT_EQ(run({"dup", "dup"}, {"a dup"}), (Outcome{"a ", 0}));
}

TEST(StopStringMatcher, SelfOverlappingStop) {
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b"}), (Outcome{"a", 0}));
  EXPECT_EQ(run({"ababac"}, {"abab", "abac"}), (Outcome{"ab", 0}));
}

TEST(StopStringMatcher, MultiByteStops) {
  EXPECT_EQ(run({"。", "停止"}, {"你好", "停", "止。"}), (Outcome{"你好", 1}));
  EXPECT_EQ(run({"👨‍👩"}, {"👨", "‍👦 👨‍", "👩x"}), (Outcome{"👨‍👦 ", 0}));
}

/// The same by looking at every prefix of the whole text.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const std::string head = text.substr(0, end);
      if (!stops[i].empty() && head.ends_with(stops[i]) &&
          (!best || stops[i].size() > stops[*best].size())) {
        best = i;
      }
    }
    if (best) {
      return {text.substr(0, end - stops[*best].size()), best};
    }
  }
  return {text, std::nullopt};
}

TEST(StopStringMatcher, OutcomeDoesNotDependOnThePieces) {
  std::mt19937 random(5);
  const std::vector<std::string> alphabet = {"a", "b", "é", "你", "ab"};
  const auto random_text = [&](std::size_t max_parts) {
    std::string text;
    for (std::size_t n = random() % (max_parts + 1); n > 0; --n) {
      text += alphabet[random() % alphabet.size()];
    }
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) {
      stop = random_text(5);
    }
    std::vector<std::string> pieces;
    std::string whole;
    for (int i = 0; i < 10; ++i) {
      pieces.push_back(random_text(3));
      whole += pieces.back();
    }
    ASSERT_EQ(run(stops, pieces), by_definition(stops, whole)) << whole;
    StopStringMatcher matcher(stops);
    for (const std::string& piece : pieces) {
      ASSERT_TRUE(text::is_valid_utf8(matcher.push(piece).text));
    }
  }
}

}  // namespace
}  // namespace fastfd
