#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fastfd/text/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

// GPT-2's split, which ByteLevel applies by itself unless use_regex is false.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Rust's \w, which counts the two joiners as word characters.
constexpr std::string_view kWordsPattern = R"([\w\u200c\u200d]+|[^\w\s\u200c\u200d]+)";

SplitBehavior parse_behavior(const std::string& name) {
  if (name == "Isolated") {
    return SplitBehavior::kIsolated;
  }
  if (name == "Removed") {
    return SplitBehavior::kRemoved;
  }
  if (name == "Contiguous") {
    return SplitBehavior::kContiguous;
  }
  if (name == "MergedWithPrevious") {
    return SplitBehavior::kMergedWithPrevious;
  }
  if (name == "MergedWithNext") {
    return SplitBehavior::kMergedWithNext;
  }
  throw TextError(fmt::format(
      "split behavior '{}' is not supported; supported are Isolated, Removed, Contiguous, "
      "MergedWithPrevious and MergedWithNext",
      name));
}

void push_word(std::vector<Span>& words, Span span) {
  if (span.begin != span.end) {
    words.push_back(span);
  }
}

/// Calls on_part(begin, end, is_match) for the matches in [word.begin, word.end) and what lies
/// between them. The pattern sees the word alone: lookarounds end at its borders.
template <typename OnPart>
void match_pattern(std::string_view text, Span word, const Pattern& pattern, RegexScratch& scratch,
                   OnPart&& on_part) {
  const std::string_view subject = text.substr(word.begin, word.end - word.begin);
  std::size_t done = 0;
  std::size_t from = 0;
  std::size_t last_end = std::string_view::npos;
  while (from <= subject.size()) {
    const auto match = pattern.find(subject, from, scratch);
    if (!match) {
      break;
    }
    from = match->end;
    if (match->begin == match->end) {
      // An empty match right behind a match does not count; either way go on one character later.
      const bool skipped = match->end == last_end;
      if (from < subject.size()) {
        next_code_point(subject, from);
      } else {
        ++from;
      }
      if (skipped) {
        continue;
      }
    }
    if (done != match->begin) {
      on_part(word.begin + done, word.begin + match->begin, false);
    }
    on_part(word.begin + match->begin, word.begin + match->end, true);
    done = match->end;
    last_end = match->end;
  }
  if (done != subject.size()) {
    on_part(word.begin + done, word.end, false);
  }
}

/// The same for single characters that satisfy `predicate`.
template <typename Predicate, typename OnPart>
void match_characters(std::string_view text, Span word, Predicate&& predicate, OnPart&& on_part) {
  std::size_t done = word.begin;
  for (std::size_t pos = word.begin; pos < word.end;) {
    const std::size_t begin = pos;
    if (!predicate(next_code_point(text, pos))) {
      continue;
    }
    if (done != begin) {
      on_part(done, begin, false);
    }
    on_part(begin, pos, true);
    done = pos;
  }
  if (done != word.end) {
    on_part(done, word.end, false);
  }
}

void merge_with_next(const std::vector<WordList::Part>& parts, std::vector<Span>& words) {
  const std::size_t first_word = words.size();
  bool previous_match = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const WordList::Part& part = parts[i];
    if (part.is_match && !previous_match && words.size() > first_word) {
      words.back().begin = part.span.begin;
    } else {
      words.push_back(part.span);
    }
    previous_match = part.is_match;
  }
  std::reverse(words.begin() + static_cast<std::ptrdiff_t>(first_word), words.end());
}

/// Joins the parts of one word as `behavior` says.
void arrange(const std::vector<WordList::Part>& parts, SplitBehavior behavior,
             std::vector<Span>& words) {
  const std::size_t first_word = words.size();
  if (behavior == SplitBehavior::kMergedWithNext) {
    merge_with_next(parts, words);
  } else {
    bool previous_match = false;
    for (const WordList::Part& part : parts) {
      bool joins = false;
      if (behavior == SplitBehavior::kContiguous) {
        joins = part.is_match == previous_match;
      } else if (behavior == SplitBehavior::kMergedWithPrevious) {
        joins = part.is_match && !previous_match;
      } else if (behavior == SplitBehavior::kRemoved && part.is_match) {
        continue;
      }
      if (joins && words.size() > first_word) {
        words.back().end = part.span.end;
      } else {
        words.push_back(part.span);
      }
      previous_match = part.is_match;
    }
  }
  words.erase(std::remove_if(words.begin() + static_cast<std::ptrdiff_t>(first_word), words.end(),
                             [](Span span) { return span.begin == span.end; }),
              words.end());
}

/// Runs `match` over every word and replaces the list by what comes out.
template <typename Match>
void split_words(WordList& list, SplitBehavior behavior, bool invert, Match&& match) {
  list.spare_words.clear();
  for (const Span word : list.words) {
    if (behavior == SplitBehavior::kIsolated) {
      match(word, [&](std::size_t begin, std::size_t end, bool) {
        push_word(list.spare_words, {begin, end});
      });
      continue;
    }
    list.parts.clear();
    match(word, [&](std::size_t begin, std::size_t end, bool is_match) {
      list.parts.push_back({{begin, end}, is_match != invert});
    });
    arrange(list.parts, behavior, list.spare_words);
  }
  std::swap(list.words, list.spare_words);
}

void insert_prefix_spaces(WordList& list) {
  std::string& out = list.spare_text;
  out.clear();
  for (Span& word : list.words) {
    const std::size_t begin = out.size();
    if (list.text[word.begin] != ' ') {
      out += ' ';
    }
    out += list.text.substr(word.begin, word.end - word.begin);
    word = {begin, out.size()};
  }
  std::swap(list.rewritten, list.spare_text);
  list.text = list.rewritten;
}

}  // namespace

void PreTokenizer::add(const JsonFields& json) {
  const std::string& type = json.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < json.array("pretokenizers").size(); ++i) {
      add(json.element("pretokenizers", i));
    }
    return;
  }
  if (is_byte_level_) {
    throw TextError(
        fmt::format("pre-tokenizer '{}' after ByteLevel is not supported; ByteLevel "
                    "must be the last step",
                    type));
  }
  if (type == "Split") {
    steps_.emplace_back(Split{Pattern::from_json(json, "pattern"),
                              parse_behavior(json.string("behavior")),
                              json.boolean_or("invert", false)});
  } else if (type == "Digits") {
    steps_.emplace_back(Digits{json.boolean_or("individual_digits", false)});
  } else if (type == "Punctuation") {
    steps_.emplace_back(Punctuation{parse_behavior(json.string_or("behavior", "Isolated"))});
  } else if (type == "Whitespace") {
    steps_.emplace_back(Split{Pattern(Regex(kWordsPattern)), SplitBehavior::kRemoved, true});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(WhiteSpace{});
  } else if (type == "CharDelimiterSplit") {
    std::string delimiter;
    append_utf8(delimiter, json.character("delimiter"));
    steps_.emplace_back(Split{Pattern(std::move(delimiter)), SplitBehavior::kRemoved, false});
  } else if (type == "Metaspace") {
    add_metaspace(json);
  } else if (type == "ByteLevel") {
    add_byte_level(json);
  } else {
    throw TextError(
        fmt::format("pre-tokenizer '{}' is not supported; supported are ByteLevel, Metaspace, "
                    "Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit "
                    "and Sequence",
                    type));
  }
}

void PreTokenizer::add_byte_level(const JsonFields& json) {
  is_byte_level_ = true;
  if (json.boolean_or("add_prefix_space", true)) {
    steps_.emplace_back(PrefixSpace{});
  }
  if (json.boolean_or("use_regex", true)) {
    steps_.emplace_back(Split{Pattern(Regex(kGpt2Pattern)), SplitBehavior::kIsolated, false});
  }
}

void PreTokenizer::add_metaspace(const JsonFields& json) {
  Metaspace step;
  append_utf8(step.replacement, json.character("replacement"));
  // Files from before prepend_scheme say add_prefix_space; where both are there, the newer counts.
  const bool old_prefix = json.boolean_or("add_prefix_space", true);
  const std::string scheme = json.string_or("prepend_scheme", old_prefix ? "always" : "never");
  if (scheme == "always") {
    step.prepend = Metaspace::Prepend::kAlways;
  } else if (scheme == "first") {
    step.prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    step.prepend = Metaspace::Prepend::kNever;
  } else {
    json.fail("prepend_scheme", "always, first or never");
  }
  if (!old_prefix && scheme != "never") {
    json.fail("add_prefix_space", fmt::format("true, which prepend_scheme {} needs", scheme));
  }
  Pattern border(step.replacement);
  steps_.emplace_back(std::move(step));
  if (json.boolean_or("split", true)) {
    steps_.emplace_back(Split{std::move(border), SplitBehavior::kMergedWithNext, false});
  }
}

void PreTokenizer::replace_spaces(const Metaspace& step, WordList& list) {
  std::string& out = list.spare_text;
  out.clear();
  for (Span& word : list.words) {
    const std::string_view text = list.text.substr(word.begin, word.end - word.begin);
    const bool is_first = list.starts_text && word.begin == 0;
    const bool may_prepend = step.prepend == Metaspace::Prepend::kAlways ||
                             (step.prepend == Metaspace::Prepend::kFirst && is_first);
    const std::size_t begin = out.size();
    if (may_prepend && !text.starts_with(' ') && !text.starts_with(step.replacement)) {
      out += step.replacement;
    }
    for (std::size_t done = 0; done < text.size();) {
      const std::size_t space = std::min(text.find(' ', done), text.size());
      out += text.substr(done, space - done);
      if (space < text.size()) {
        out += step.replacement;
      }
      done = space + 1;
    }
    word = {begin, out.size()};
  }
  std::swap(list.rewritten, list.spare_text);
  list.text = list.rewritten;
}

void PreTokenizer::split(WordList& list, RegexScratch& scratch) const {
  list.words.clear();
  push_word(list.words, {0, list.text.size()});
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      split_words(list, split->behavior, split->invert, [&](Span word, auto&& on_part) {
        match_pattern(list.text, word, split->pattern, scratch, on_part);
      });
    } else if (const auto* digits = std::get_if<Digits>(&step)) {
      const auto behavior =
          digits->individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
      split_words(list, behavior, false, [&](Span word, auto&& on_part) {
        match_characters(list.text, word, is_number, on_part);
      });
    } else if (const auto* punctuation = std::get_if<Punctuation>(&step)) {
      split_words(list, punctuation->behavior, false, [&](Span word, auto&& on_part) {
        match_characters(list.text, word, is_punctuation, on_part);
      });
    } else if (std::holds_alternative<WhiteSpace>(step)) {
      split_words(list, SplitBehavior::kRemoved, false, [&](Span word, auto&& on_part) {
        match_characters(list.text, word, is_white_space, on_part);
      });
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      replace_spaces(*metaspace, list);
    } else {
      insert_prefix_spaces(list);
    }
  }
}

}  // namespace fastfd::text
