#include "text/post_processor.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "fastfd/text/error.h"

namespace fastfd::text {
namespace {

using nlohmann::json;

TokenId read_id(const json& value, const std::string& path) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > std::numeric_limits<TokenId>::max()) {
    throw TextError(fmt::format("{} is {}, not a token id", path, shown_json(value)));
  }
  return value.get<TokenId>();
}

AddedAround read_template(const JsonFields& fields) {
  AddedAround around;
  bool after_text = false;
  for (std::size_t i = 0; i < fields.array("single").size(); ++i) {
    const JsonFields part = fields.element("single", i);
    if (part.find("Sequence") != nullptr) {
      after_text = true;
      continue;
    }
    const std::string& name = part.child("SpecialToken").string("id");
    const JsonFields token = fields.child("special_tokens").child(name.c_str());
    for (const auto& id : token.array("ids")) {
      (after_text ? around.suffix : around.prefix).push_back(read_id(id, token.full_key("ids")));
    }
  }
  return around;
}

/// `cls` or `sep` of BERT and RoBERTa: ["<s>", 0].
TokenId read_named_token(const JsonFields& fields, const char* key) {
  const auto& pair = fields.array(key);
  if (pair.size() != 2 || !pair[0].is_string()) {
    fields.fail(key, R"(a token with its id, as in ["<s>", 0])");
  }
  return read_id(pair[1], fields.full_key(key));
}

}  // namespace

AddedAround read_post_processor(const JsonFields& json) {
  const std::string& type = json.string("type");
  AddedAround around;
  if (type == "Sequence") {
    for (std::size_t i = 0; i < json.array("processors").size(); ++i) {
      AddedAround outer = read_post_processor(json.element("processors", i));
      outer.prefix.insert(outer.prefix.end(), around.prefix.begin(), around.prefix.end());
      around.suffix.insert(around.suffix.end(), outer.suffix.begin(), outer.suffix.end());
      around.prefix = std::move(outer.prefix);
    }
  } else if (type == "TemplateProcessing") {
    around = read_template(json);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    around.prefix.push_back(read_named_token(json, "cls"));
    around.suffix.push_back(read_named_token(json, "sep"));
  } else if (type != "ByteLevel") {  // which changes offsets only
    throw TextError(
        fmt::format("post-processor '{}' is not supported; supported are ByteLevel, "
                    "TemplateProcessing, RobertaProcessing, BertProcessing and Sequence",
                    type));
  }
  return around;
}

}  // namespace fastfd::text
