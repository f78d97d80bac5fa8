#include "text/normalizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fastfd/text/error.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

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

Pattern Pattern::from_json(const nlohmann::json& json) {
  if (json.contains("Regex")) {
    return Pattern(Regex(json.at("Regex").get_ref<const std::string&>()));
  }
  if (json.contains("String")) {
    return Pattern(json.at("String").get<std::string>());
  }
  throw TextError("a pattern must be {\"Regex\": ...} or {\"String\": ...}, not " + json.dump());
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

Normalizer::Normalizer(const nlohmann::json& json) {
  if (!json.is_null()) {
    add(json);
  }
}

void Normalizer::add(const nlohmann::json& json) {
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const auto& child : json.at("normalizers")) {
      add(child);
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
    steps_.emplace_back(Prepend{json.at("prepend").get<std::string>()});
  } else if (type == "Replace") {
    steps_.emplace_back(
        Replace{Pattern::from_json(json.at("pattern")), json.at("content").get<std::string>()});
  } else if (type == "Strip") {
    steps_.emplace_back(
        Strip{json.at("strip_left").get<bool>(), json.at("strip_right").get<bool>()});
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
      std::size_t done = 0;
      std::size_t from = 0;
      while (from <= text.size()) {
        const auto match = replace->pattern.find(text, from, scratch);
        if (!match) {
          break;
        }
        spare += text.substr(done, match->begin - done);
        spare += replace->content;
        done = match->end;
        from = match->end;
        if (match->begin == match->end) {
          if (from == text.size()) {
            break;
          }
          next_code_point(text, from);
        }
      }
      spare += text.substr(done);
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
