#include "text/normalizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fastfd/text/error.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

/// Steps that each double the text would take all memory. Requests are smaller by far.
constexpr std::size_t kMostReplacedBytes = std::size_t{64} << 20;

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    std::size_t pos = 0;
    if (!is_white_space(next_code_point(text, pos))) {
      break;
    }
    text.remove_prefix(pos);
  }
  while (right && !text.empty()) {
    const std::size_t start = previous_boundary(text, text.size());
    std::size_t pos = start;
    if (!is_white_space(next_code_point(text, pos))) {
      break;
    }
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

Pattern Pattern::from_json(const JsonFields& fields, const char* key) {
  const JsonFields pattern = fields.child(key);
  if (pattern.find("Regex") != nullptr) {
    return Pattern(Regex(pattern.string("Regex")));
  }
  if (pattern.find("String") != nullptr) {
    return Pattern(pattern.string("String"));
  }
  fields.fail(key, R"({"Regex": "..."} or {"String": "..."})");
}

std::optional<Span> Pattern::find(std::string_view text, std::size_t start,
                                  RegexScratch& scratch) const {
  if (regex_) {
    return regex_->find(text, start, scratch);
  }
  const std::size_t begin = literal_.empty() ? std::string_view::npos : text.find(literal_, start);
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  return Span{begin, begin + literal_.size()};
}

void Pattern::replace_all(std::string_view text, std::string_view content, RegexScratch& scratch,
                          std::string& out) const {
  std::size_t done = 0;
  std::size_t from = 0;
  while (from <= text.size()) {
    const auto match = find(text, from, scratch);
    if (!match) {
      break;
    }
    out += text.substr(done, match->begin - done);
    out += content;
    if (out.size() > kMostReplacedBytes) {
      throw TextError(
          fmt::format("Replace makes more than {} bytes of this text; correct its content, which "
                      "should not be much longer than its pattern",
                      kMostReplacedBytes));
    }
    done = match->end;
    from = match->end;
    if (match->begin == match->end) {
      if (from == text.size()) {
        break;
      }
      next_code_point(text, from);
    }
  }
  out += text.substr(done);
}

void Normalizer::add(const JsonFields& json) {
  const std::string& type = json.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < json.array("normalizers").size(); ++i) {
      add(json.element("normalizers", i));
    }
  } else if (type == "NFC") {
    steps_.emplace_back(NormalizationForm::kNfc);
    std::string buffer;
    // Builds the boundary table now, not in the first request.
    static_cast<void>(normalize("\u00E9", NormalizationForm::kNfc, buffer));
  } else if (type == "NFD") {
    steps_.emplace_back(NormalizationForm::kNfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(NormalizationForm::kNfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(NormalizationForm::kNfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{json.string("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{Pattern::from_json(json, "pattern"), json.string("content")});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{json.boolean("strip_left"), json.boolean("strip_right")});
  } else {
    throw TextError(
        fmt::format("normalizer '{}' is not supported; supported are NFC, NFD, NFKC, NFKD, "
                    "Lowercase, Prepend, Replace, Strip and Sequence",
                    type));
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer, std::string& spare,
                                   RegexScratch& scratch) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<NormalizationForm>(&step)) {
      const std::string_view result = normalize(text, *form, spare);
      if (result.data() == text.data()) {
        continue;
      }
    } else if (std::holds_alternative<Lowercase>(step)) {
      spare.clear();
      for (std::size_t pos = 0; pos < text.size();) {
        append_lower(spare, next_code_point(text, pos));
      }
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      spare = text.empty() ? std::string() : prepend->text + std::string(text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      spare.clear();
      replace->pattern.replace_all(text, replace->content, scratch, spare);
    } else if (const auto* sides = std::get_if<Strip>(&step)) {
      text = strip(text, sides->left, sides->right);
      continue;
    }
    std::swap(buffer, spare);
    text = buffer;
  }
  return text;
}

}  // namespace fastfd::text
