#include "gateway/prompt_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "gateway/api_error.h"

namespace fastfd::gateway {
using json = RequestJson;

std::vector<TokenId> encode_text(const ServedModel& model, const std::string& text,
                                 bool add_special_tokens, const char* param) {
  try {
    return model.text->encode(text, add_special_tokens);
  } catch (const std::invalid_argument& error) {
    reject(param, fmt::format("{} can't be tokenized: {}", param, error.what()));
  }
}

void check_model_name(const ParamReader& params, const ServedModel& model) {
  const auto name = params.string("model");
  if (!name || *name == model.name) {
    return;
  }
  ApiError error;
  error.status = 404;
  error.message =
      fmt::format("The model '{}' does not exist; this server has '{}'.", *name, model.name);
  error.param = "model";
  error.code = "model_not_found";
  throw RequestRejected(std::move(error));
}

std::vector<PromptTokens> read_completion_prompts(const ParamReader& params,
                                                  const ServedModel& model) {
  constexpr const char* kLegal =
      "a string, a list of strings, a list of token ids or a list of lists of token ids";
  const json* prompt = params.find("prompt");
  if (prompt == nullptr) {
    reject("prompt", fmt::format("prompt is missing; it must be {}.", kLegal),
           "missing_required_parameter");
  }
  const std::uint32_t vocab_size = model.vocab_size;
  std::vector<PromptTokens> prompts;
  if (prompt->is_string()) {
    const auto text = prompt->get<std::string>();
    prompts.push_back({encode_text(model, text, true, "prompt"), text});
    return prompts;
  }
  if (!prompt->is_array() || prompt->empty()) {
    reject_value("prompt", *prompt, kLegal, prompt->is_array() ? "invalid_value" : "invalid_type");
  }
  if (prompt->front().is_number()) {
    prompts.push_back({read_token_ids(*prompt, "prompt", vocab_size), {}});
    return prompts;
  }
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    const json& entry = (*prompt)[i];
    const std::string name = fmt::format("prompt[{}]", i);
    if (entry.is_string()) {
      const auto text = entry.get<std::string>();
      prompts.push_back({encode_text(model, text, true, "prompt"), text});
    } else if (entry.is_array()) {
      prompts.push_back({read_token_ids(entry, name, vocab_size), {}});
    } else {
      reject_value(name, entry, "a string or a list of token ids", "invalid_type");
    }
  }
  return prompts;
}

}  // namespace fastfd::gateway
