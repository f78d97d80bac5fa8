#include "gateway/prompt_reader.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "gateway/api_error.h"

namespace fastfd::gateway {
namespace {

using nlohmann::json;

/// Text of one `content`: a string, or parts of type text, which are joined by line breaks.
std::string read_content(const json& content, const std::string& name) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  if (!content.is_array()) {
    reject_value(name, content, "a string or a list of text parts", "invalid_type");
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part_name = fmt::format("{}[{}]", name, i);
    const json& part = content[i];
    if (!part.is_object()) {
      reject_value(part_name, part, R"(an object like {"type": "text", "text": "..."})",
                   "invalid_type");
    }
    const std::string type = part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : std::string();
    if (type != "text") {
      reject(part_name + ".type",
             fmt::format("{}.type is \"{}\"; this model takes parts of type \"text\" only.",
                         part_name, type));
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      reject(part_name + ".text", fmt::format("{}.text must be a string.", part_name),
             "invalid_type");
    }
    text += i == 0 ? "" : "\n";
    text += part["text"].get<std::string>();
  }
  return text;
}

ChatMessage read_message(const json& value, const std::string& name) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  if (!value.is_object()) {
    reject_value(name, value, "an object with role and content", "invalid_type");
  }
  const ParamReader message(value);
  const auto role = value.find("role");
  if (role == value.end() || !role->is_string()) {
    reject(name + ".role", fmt::format("{}.role is missing; it must be a string.", name),
           role == value.end() ? "missing_required_parameter" : "invalid_type");
  }
  ChatMessage result;
  result.role = role->get<std::string>();
  if (std::find(kRoles.begin(), kRoles.end(), result.role) == kRoles.end()) {
    reject_value(name + ".role", *role, "one of system, developer, user, assistant, tool");
  }
  if (result.role == "developer") {  // the newer name of the same thing; templates know the older
    result.role = "system";
  }
  for (const char* unsupported : {"tool_calls", "function_call"}) {
    if (const json* calls = message.find(unsupported); calls != nullptr && !calls->empty()) {
      reject(fmt::format("{}.{}", name, unsupported),
             fmt::format("{}.{}: tools are not supported; remove the field.", name, unsupported),
             "unsupported_parameter");
    }
  }
  if (const json* content = message.find("content"); content != nullptr) {
    result.content = read_content(*content, name + ".content");
  } else if (result.role != "assistant") {
    reject(name + ".content", fmt::format("{}.content is missing; it must be a string.", name),
           "missing_required_parameter");
  }
  return result;
}

/// The request's further variables of the chat template. They win over the template's others, so
/// those that the server itself gives it may not be among them: `messages` would replace the
/// conversation that was checked, `eos_token` what ends a turn.
std::string read_template_variables(const json& variables) {
  constexpr const char* kName = "chat_template_kwargs";
  constexpr std::array<std::string_view, 12> kReserved = {
      "messages",  "tools",     "documents",  "add_generation_prompt",
      "bos_token", "eos_token", "unk_token",  "sep_token",
      "pad_token", "cls_token", "mask_token", "additional_special_tokens"};
  if (!variables.is_object()) {
    reject_value(kName, variables, "an object", "invalid_type");
  }
  for (const std::string_view reserved : kReserved) {
    if (variables.contains(std::string(reserved))) {
      reject(fmt::format("{}.{}", kName, reserved),
             fmt::format("{}.{} may not be set: the server gives the chat template this variable, "
                         "from the request's own fields or the model; remove it.",
                         kName, reserved));
    }
  }
  return variables.dump();
}

}  // namespace

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

std::string read_chat_prompt(const ParamReader& params, const ServedModel& model) {
  const json* list = params.find("messages");
  if (list == nullptr) {
    reject("messages", "messages is missing; it must be a list of messages.",
           "missing_required_parameter");
  }
  if (!list->is_array() || list->empty()) {
    reject_value("messages", *list, "a list of at least one message",
                 list->is_array() ? "invalid_value" : "invalid_type");
  }
  std::vector<ChatMessage> messages;
  messages.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    messages.push_back(read_message((*list)[i], fmt::format("messages[{}]", i)));
  }
  ChatRenderOptions options;
  options.continue_final_message = params.boolean("continue_final_message").value_or(false);
  options.add_generation_prompt =
      params.boolean("add_generation_prompt").value_or(!options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt) {
    reject("add_generation_prompt",
           "add_generation_prompt and continue_final_message exclude each other; set one.");
  }
  if (const json* variables = params.find("chat_template_kwargs"); variables != nullptr) {
    options.variables_json = read_template_variables(*variables);
  }
  try {
    return model.text->render_chat(messages, options);
  } catch (const std::invalid_argument& error) {
    reject("messages", fmt::format("The chat template refuses the messages: {}", error.what()));
  }
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
