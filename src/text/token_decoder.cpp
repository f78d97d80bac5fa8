#include "text/token_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "fastfd/text/error.h"
#include "text/byte_level.h"

namespace fastfd::text {
namespace {

constexpr std::string_view kReplacementCharacter = "\uFFFD";

/// The byte that "<0x0A>" stands for.
std::optional<char> fallback_byte(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content.back() != '>') {
    return std::nullopt;
  }
  unsigned value = 0;
  const auto result = std::from_chars(content.data() + 3, content.data() + 5, value, 16);
  return result.ec == std::errc() && result.ptr == content.data() + 5
             ? std::optional(static_cast<char>(value))
             : std::nullopt;
}

bool is_single_character(std::string_view text) {
  std::size_t pos = 0;
  return !text.empty() && (next_code_point(text, pos), pos == text.size());
}

void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::string& out) {
  for (std::size_t done = 0; done < text.size();) {
    const std::size_t match = std::min(text.find(from, done), text.size());
    out += text.substr(done, match - done);
    if (match < text.size()) {
      out += to;
    }
    done = match + from.size();
  }
}

}  // namespace

TokenDecoder::TokenDecoder(const JsonFields& json) { add(json); }

void TokenDecoder::enter(Phase phase, const JsonFields& json) {
  // A second one of a kind is refused too; only Fuse may follow what has fused already.
  const bool again = phase == phase_ && phase != Phase::kFused;
  if (phase < phase_ || again || (phase == Phase::kBytes && !text_steps_.empty())) {
    throw TextError(fmt::format(
        "{}: decoder '{}' at this place is not supported; supported are, in this order: Replace "
        "and Strip of tokens, Metaspace, ByteFallback or ByteLevel, Fuse, then Replace and Strip "
        "of characters",
        json.path(), json.string("type")));
  }
  phase_ = phase;
}

void TokenDecoder::add(const JsonFields& json) {
  const std::string& type = json.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < json.array("decoders").size(); ++i) {
      add(json.element("decoders", i));
    }
  } else if (type == "Replace" || type == "Strip") {
    add_text_step(json, type);
  } else if (type == "Metaspace") {
    // Behind ByteFallback, as early files have it, it does the same: no byte makes its mark.
    if (metaspace_ || phase_ == Phase::kFused || !text_steps_.empty()) {
      enter(Phase::kMetaspace, json);
    }
    phase_ = std::max(phase_, Phase::kMetaspace);
    metaspace_ = Metaspace{};
    append_utf8(metaspace_->replacement, json.character("replacement"));
    metaspace_->drops_first =
        json.string_or("prepend_scheme",
                       json.boolean_or("add_prefix_space", true) ? "always" : "never") != "never";
  } else if (type == "ByteFallback") {
    enter(Phase::kBytes, json);
    byte_fallback_ = true;
  } else if (type == "ByteLevel") {
    enter(Phase::kBytes, json);
    byte_level_ = true;
    phase_ = Phase::kFused;
  } else if (type == "Fuse") {
    enter(Phase::kFused, json);
  } else {
    throw TextError(
        fmt::format("decoder '{}' is not supported; supported are ByteLevel, ByteFallback, Fuse, "
                    "Metaspace, Replace, Strip and Sequence",
                    type));
  }
}

void TokenDecoder::add_text_step(const JsonFields& json, const std::string& type) {
  const bool of_tokens = phase_ == Phase::kTokens;
  if (type == "Strip") {
    if (!of_tokens && phase_ != Phase::kFused) {
      enter(Phase::kTokens, json);
    }
    Strip strip;
    append_utf8(strip.character, json.character("content"));
    strip.start = json.count("start");
    strip.stop = json.count("stop");
    (of_tokens ? token_steps_ : text_steps_).emplace_back(std::move(strip));
    return;
  }
  Replace replace{Pattern::from_json(json, "pattern"), json.string("content")};
  const auto literal = replace.pattern.literal();
  if (!of_tokens && (!literal || !is_single_character(*literal))) {
    throw TextError(
        fmt::format("{}: decoder 'Replace' of more than a single character behind ByteFallback, "
                    "ByteLevel or Fuse is not supported; put it before them",
                    json.path()));
  }
  (of_tokens ? token_steps_ : text_steps_).emplace_back(std::move(replace));
}

std::string_view TokenDecoder::strip(const Strip& strip, std::string_view text) {
  for (std::size_t i = 0; i < strip.start && text.starts_with(strip.character); ++i) {
    text.remove_prefix(strip.character.size());
  }
  for (std::size_t i = 0; i < strip.stop && text.ends_with(strip.character); ++i) {
    text.remove_suffix(strip.character.size());
  }
  return text;
}

std::string TokenDecoder::apply_token_steps(std::string_view content, RegexScratch& scratch) const {
  std::string text(content);
  for (const Step& step : token_steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) {
      std::string replaced;
      replace->pattern.replace_all(text, replace->content, scratch, replaced);
      text = std::move(replaced);
    } else {
      text = std::string(strip(std::get<Strip>(step), text));
    }
  }
  return text;
}

TokenDecoder::TokenText TokenDecoder::token_text(std::string_view content,
                                                 RegexScratch& scratch) const {
  std::string text = apply_token_steps(content, scratch);
  if (metaspace_) {
    std::string spaced;
    append_replaced(text, metaspace_->replacement, " ", spaced);
    text = std::move(spaced);
  }
  if (byte_fallback_) {
    if (const auto byte = fallback_byte(text)) {
      return {std::string(1, *byte), true};
    }
  }
  if (byte_level_) {
    if (auto bytes = bytes_of_byte_level(text)) {
      return {std::move(*bytes), false};
    }
  }
  return {std::move(text), false};
}

std::optional<std::string> TokenDecoder::first_text(std::string_view content,
                                                    RegexScratch& scratch) const {
  if (!metaspace_ || !metaspace_->drops_first) {
    return std::nullopt;
  }
  const std::string text = apply_token_steps(content, scratch);
  if (text.find(metaspace_->replacement) == std::string::npos) {
    return std::nullopt;
  }
  std::string dropped;
  append_replaced(text, metaspace_->replacement, "", dropped);
  return byte_level_ ? bytes_of_byte_level(dropped).value_or(dropped) : dropped;
}

DecodeStream::DecodeStream(const TokenDecoder& decoder, Fallback fallback)
    : decoder_(&decoder), fallback_(fallback) {
  reset();
}

void DecodeStream::reset() {
  is_first_ = true;
  strips_.assign(decoder_->text_steps_.size(), {});
  for (std::size_t i = 0; i < strips_.size(); ++i) {
    if (const auto* strip = std::get_if<TokenDecoder::Strip>(&decoder_->text_steps_[i])) {
      strips_[i].left = strip->start;
    }
  }
}

void DecodeStream::push(std::string_view bytes, bool is_byte, const std::string* first,
                        std::string& out) {
  const bool is_first = std::exchange(is_first_, false);
  if (is_byte) {
    push_fallback_byte(bytes.front(), out);
    return;
  }
  end_run(out);
  if (is_first && first != nullptr) {
    bytes = *first;
  }
  if (!decoder_->byte_level_) {
    emit(bytes, out);
  } else if (decoder_->text_steps_.empty()) {
    utf8_.push(bytes, out);
  } else {
    std::string text;
    utf8_.push(bytes, text);
    emit(text, out);
  }
}

void DecodeStream::push_fallback_byte(char byte, std::string& out) {
  run_ += byte;
  if (fallback_ == Fallback::kByRun) {
    return;
  }
  while (!run_.empty()) {
    const Utf8Char c = decode_utf8(run_);
    if (c.kind == Utf8Kind::kIncomplete) {
      return;
    }
    const std::string character = run_.substr(0, c.num_bytes);
    run_.erase(0, c.num_bytes);
    if (c.kind == Utf8Kind::kValid) {
      emit(character, out);
      continue;
    }
    for (std::size_t i = 0; i < c.num_bytes; ++i) {
      emit(kReplacementCharacter, out);
    }
  }
}

void DecodeStream::end_run(std::string& out) {
  if (run_.empty()) {
    return;
  }
  const std::string run = std::exchange(run_, {});
  if (is_valid_utf8(run)) {
    emit(run, out);
    return;
  }
  for (std::size_t i = 0; i < run.size(); ++i) {
    emit(kReplacementCharacter, out);
  }
}

void DecodeStream::emit_from(std::size_t step, std::string_view text, std::string& out) {
  if (text.empty()) {
    return;
  }
  if (step == decoder_->text_steps_.size()) {
    out += text;
    return;
  }
  const auto* replace = std::get_if<TokenDecoder::Replace>(&decoder_->text_steps_[step]);
  if (replace == nullptr) {
    emit_stripped(step, text, out);
    return;
  }
  std::string replaced;
  append_replaced(text, *replace->pattern.literal(), replace->content, replaced);
  emit_from(step + 1, replaced, out);
}

void DecodeStream::emit_stripped(std::size_t step, std::string_view text, std::string& out) {
  const auto& strip = std::get<TokenDecoder::Strip>(decoder_->text_steps_[step]);
  StripState& state = strips_[step];
  const std::size_t width = strip.character.size();
  while (state.left > 0 && text.starts_with(strip.character)) {
    text.remove_prefix(width);
    --state.left;
  }
  if (text.empty()) {
    return;
  }
  state.left = 0;
  std::size_t num_trailing = 0;
  while (text.size() >= (num_trailing + 1) * width &&
         text.substr(0, text.size() - num_trailing * width).ends_with(strip.character)) {
    ++num_trailing;
  }
  // What was held leaves when something else follows it, or when more than `stop` follow.
  const bool all_trailing = num_trailing * width == text.size();
  const std::size_t at_end = num_trailing + (all_trailing ? state.held : 0);
  const std::size_t holds = std::min(at_end, strip.stop);
  std::string passed;
  for (std::size_t i = all_trailing ? at_end - holds : state.held; i > 0; --i) {
    passed += strip.character;
  }
  if (!all_trailing) {
    passed += text.substr(0, text.size() - holds * width);
  }
  state.held = holds;
  emit_from(step + 1, passed, out);
}

void DecodeStream::flush(std::string& out) {
  end_run(out);
  std::string rest;
  utf8_.flush(rest);
  emit(rest, out);
  reset();  // what strips hold goes
}

void DecodeStream::forget_pending() {
  run_.clear();
  utf8_ = {};
  for (StripState& strip : strips_) {
    strip.held = 0;
  }
}

bool DecodeStream::has_pending() const {
  return !run_.empty() || utf8_.has_pending() ||
         std::any_of(strips_.begin(), strips_.end(), [](const auto& s) { return s.held > 0; });
}

bool DecodeStream::has_started() const {
  return !is_first_ &&
         std::all_of(strips_.begin(), strips_.end(), [](const auto& s) { return s.left == 0; });
}

}  // namespace fastfd::text
