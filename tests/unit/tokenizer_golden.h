#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "fastfd/text/tokenizer.h"

namespace fastfd {

inline nlohmann::json read_source_json(const std::string& path) {
  std::ifstream file(std::string(FASTFD_SOURCE_DIR) + "/" + path);
  return nlohmann::json::parse(file);
}

/// tests/reference/text/tokenizer_golden.json, written by make_tokenizer_golden.py.
inline const nlohmann::json& tokenizer_golden() {
  static const nlohmann::json golden =
      read_source_json("tests/reference/text/tokenizer_golden.json");
  return golden;
}

/// The tokenizer.json of a variant, as make_tokenizer_golden.py's assemble() makes it.
inline nlohmann::json variant_json(const nlohmann::json& variant) {
  const auto& vocabulary = tokenizer_golden().at(variant.at("vocabulary").get<std::string>());
  nlohmann::json vocab = nlohmann::json::object();
  for (std::size_t i = 0; i < vocabulary.at("vocab").size(); ++i) {
    vocab[vocabulary.at("vocab")[i].get<std::string>()] = i;
  }
  nlohmann::json merges = vocabulary.at("merges");
  if (variant.at("string_merges").get<bool>()) {
    for (auto& merge : merges) {
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
  }
  nlohmann::json result = variant.at("tokenizer");
  result["model"] = {{"type", "BPE"},
                     {"ignore_merges", variant.at("ignore_merges")},
                     {"vocab", std::move(vocab)},
                     {"merges", std::move(merges)}};
  result["model"].update(variant.at("model"));
  return result;
}

/// The variant of that name; the first of all is "qwen2".
inline const nlohmann::json& variant_named(const std::string& name) {
  for (const auto& variant : tokenizer_golden().at("variants")) {
    if (variant.at("name") == name) {
      return variant;
    }
  }
  throw std::invalid_argument("no variant " + name);
}

inline Tokenizer load_variant(const nlohmann::json& variant) {
  return Tokenizer::from_json(variant_json(variant).dump());
}

}  // namespace fastfd
