#include "gateway/chat_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "gateway/api_error.h"

namespace fastfd::gateway {
namespace {

using json = RequestJson;

/// A string member that must be there.
const std::string& require_string(const json& object, const char* key, const std::string& name) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) {
    reject(fmt::format("{}.{}", name, key),
           it == object.end() ? fmt::format("{}.{} is missing; it must be a string.", name, key)
                              : fmt::format("{}.{} must be a string.", name, key),
           it == object.end() ? "missing_required_parameter" : "invalid_type");
  }
  return it->get_ref<const std::string&>();
}

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
    text += i == 0 ? "" : "\n";
    text += require_string(part, "text", part_name);
  }
  return text;
}

/// Templates print arguments as objects, clients send them as JSON in a string.
json read_arguments(const json& function, const std::string& name) {
  const auto it = function.find("arguments");
  if (it == function.end() || it->is_null() ||
      (it->is_string() && it->get_ref<const std::string&>().empty())) {
    return json::object();
  }
  if (it->is_object()) {
    return *it;
  }
  const std::string full_name = name + ".arguments";
  if (!it->is_string()) {
    reject_value(full_name, *it, "a JSON object in a string", "invalid_type");
  }
  try {
    return parse_json_object(it->get_ref<const std::string&>());
  } catch (const RequestRejected& error) {
    reject(full_name, fmt::format("{} is no JSON object in a string: {}", full_name, error.what()));
  }
}

json read_tool_calls(const json& calls, const std::string& name) {
  if (!calls.is_array()) {
    reject_value(name, calls, "a list of tool calls", "invalid_type");
  }
  json result = json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string call_name = fmt::format("{}[{}]", name, i);
    const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
    if (!calls[i].is_object() || function == calls[i].end() || !function->is_object()) {
      reject_value(call_name, calls[i],
                   R"(an object like {"type": "function", "function": {"name": "f", )"
                   R"("arguments": "{}"}})",
                   "invalid_type");
    }
    require_string(*function, "name", call_name + ".function");
    json call = calls[i];
    call["function"]["arguments"] = read_arguments(*function, call_name + ".function");
    result.push_back(std::move(call));
  }
  return result;
}

std::string read_role(const json& value, const std::string& name) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  const std::string& role = require_string(value, "role", name);
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    reject_value(name + ".role", value["role"], "one of system, developer, user, assistant, tool");
  }
  // The newer name of the same thing; templates know the older.
  return role == "developer" ? "system" : role;
}

/// A message as the template sees it.
json read_message(const json& value, const std::string& name) {
  if (!value.is_object()) {
    reject_value(name, value, "an object with role and content", "invalid_type");
  }
  const ParamReader message(value);
  json result = {{"role", read_role(value, name)}};
  const bool is_assistant = result["role"] == "assistant";
  if (const json* call = message.find("function_call"); call != nullptr && !call->empty()) {
    reject(name + ".function_call",
           fmt::format("{}.function_call is not supported; use tool_calls.", name),
           "unsupported_parameter");
  }
  if (const json* content = message.find("content"); content != nullptr) {
    result["content"] = read_content(*content, name + ".content");
  } else if (is_assistant) {
    result["content"] = "";
  } else {
    reject(name + ".content", fmt::format("{}.content is missing; it must be a string.", name),
           "missing_required_parameter");
  }
  // vLLM calls the same field `reasoning` since 0.12.
  for (const char* key : {"reasoning_content", "reasoning"}) {
    if (is_assistant && message.find(key) != nullptr) {
      result["reasoning_content"] = require_string(value, key, name);
    }
  }
  if (const json* calls = message.find("tool_calls"); calls != nullptr && *calls != json::array()) {
    result["tool_calls"] = read_tool_calls(*calls, name + ".tool_calls");
  }
  for (const char* key : {"name", "tool_call_id"}) {
    if (message.find(key) != nullptr) {
      result[key] = require_string(value, key, name);
    }
  }
  return result;
}

json read_messages(const ParamReader& params) {
  const json* list = params.find("messages");
  if (list == nullptr) {
    reject("messages", "messages is missing; it must be a list of messages.",
           "missing_required_parameter");
  }
  if (!list->is_array() || list->empty()) {
    reject_value("messages", *list, "a list of at least one message",
                 list->is_array() ? "invalid_value" : "invalid_type");
  }
  json messages = json::array();
  for (std::size_t i = 0; i < list->size(); ++i) {
    messages.push_back(read_message((*list)[i], fmt::format("messages[{}]", i)));
  }
  return messages;
}

/// The tools that the template is to offer; nullptr for none. What the model then writes about them
/// is text like any other.
const json* read_tools(const ParamReader& params, const ServedModel& model) {
  const json* choice = params.find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    reject("tool_choice",
           fmt::format("tool_choice is {}, which is not supported; use \"auto\" or \"none\".",
                       show_value(*choice)),
           "unsupported_parameter");
  }
  const json* tools = params.find("tools");
  if (tools == nullptr || (tools->is_array() && tools->empty())) {
    return nullptr;
  }
  if (!tools->is_array()) {
    reject_value("tools", *tools, "a list of functions", "invalid_type");
  }
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const json& tool = (*tools)[i];
    const std::string name = fmt::format("tools[{}]", i);
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    const auto type = tool.is_object() ? tool.find("type") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object() ||
        (type != tool.end() && *type != "function")) {
      reject_value(name, tool,
                   R"(an object like {"type": "function", "function": {"name": "f", )"
                   R"("parameters": {}}})");
    }
    require_string(*function, "name", name + ".function");
    const auto parameters = function->find("parameters");
    if (parameters != function->end() && !parameters->is_null() && !parameters->is_object()) {
      reject_value(name + ".function.parameters", *parameters, "a JSON schema, an object",
                   "invalid_type");
    }
  }
  if (choice != nullptr && *choice == "none") {
    return nullptr;
  }
  if (!model.text->takes_tools()) {
    reject("tools", "This model's chat template takes no tools; remove them.",
           "unsupported_parameter");
  }
  return tools;
}

const json* read_documents(const ParamReader& params) {
  const json* documents = params.find("documents");
  if (documents == nullptr) {
    return nullptr;
  }
  if (!documents->is_array() || !std::all_of(documents->begin(), documents->end(),
                                             [](const json& each) { return each.is_object(); })) {
    reject_value("documents", *documents, "a list of objects", "invalid_type");
  }
  return documents;
}

/// The request's further variables of the chat template. They win over the template's others, so
/// those that the server itself gives it may not be among them: `messages` would replace the
/// conversation that was checked, `eos_token` what ends a turn.
const json* read_template_variables(const ParamReader& params) {
  constexpr const char* kName = "chat_template_kwargs";
  constexpr std::array<std::string_view, 12> kReserved = {
      "messages",  "tools",     "documents",  "add_generation_prompt",
      "bos_token", "eos_token", "unk_token",  "sep_token",
      "pad_token", "cls_token", "mask_token", "additional_special_tokens"};
  const json* variables = params.find(kName);
  if (variables == nullptr) {
    return nullptr;
  }
  if (!variables->is_object()) {
    reject_value(kName, *variables, "an object", "invalid_type");
  }
  for (const std::string_view reserved : kReserved) {
    if (variables->contains(std::string(reserved))) {
      reject(fmt::format("{}.{}", kName, reserved),
             fmt::format("{}.{} may not be set: the server gives the chat template this variable, "
                         "from the request's own fields or the model; remove it.",
                         kName, reserved));
    }
  }
  return variables;
}

/// The template's variables with the request's `reasoning_effort` among them, unless they name one.
/// Templates that don't read it ignore it.
json with_reasoning_effort(const ParamReader& params, const json* variables,
                           const ServedModel& model) {
  json result = variables == nullptr ? json::object() : *variables;
  const auto effort = params.string("reasoning_effort");
  if (effort && model.text->takes_reasoning_effort() && !result.contains("reasoning_effort")) {
    result["reasoning_effort"] = *effort;
  }
  return result;
}

/// Whether the answer to `prompt` begins with reasoning. The prompt's end says it if the template
/// or the message to be continued has a tag there; user text elsewhere says nothing.
AnswerStart answer_start(const std::string& prompt, const ChatRenderOptions& options,
                         const json& messages, Reasoning reasoning) {
  if (reasoning == Reasoning::kNone || reasoning == Reasoning::kChannels) {
    return AnswerStart::kContent;
  }
  if (options.continue_final_message) {
    const std::string& begun = messages.back()["content"].get_ref<const std::string&>();
    const auto open = begun.rfind(kReasoningOpen);
    const auto close = begun.rfind(kReasoningClose);
    const bool is_open = open != std::string::npos && (close == std::string::npos || close < open);
    return is_open ? AnswerStart::kReasoning : AnswerStart::kContent;
  }
  std::string_view end = prompt;
  end = end.substr(0, end.find_last_not_of(" \t\r\n") + 1);
  if (end.ends_with(kReasoningOpen)) {
    return AnswerStart::kReasoning;
  }
  if (end.ends_with(kReasoningClose)) {
    return AnswerStart::kContent;
  }
  return reasoning == Reasoning::kImplied ? AnswerStart::kReasoning : AnswerStart::kUndecided;
}

}  // namespace

ChatPrompt read_chat_prompt(const ParamReader& params, const ServedModel& model) {
  const json messages = read_messages(params);
  ChatRenderOptions options;
  options.continue_final_message = params.boolean("continue_final_message").value_or(false);
  options.add_generation_prompt =
      params.boolean("add_generation_prompt").value_or(!options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt) {
    reject("add_generation_prompt",
           "add_generation_prompt and continue_final_message exclude each other; set one.");
  }
  options.tools = read_tools(params, model);
  options.documents = read_documents(params);
  const json variables = with_reasoning_effort(params, read_template_variables(params), model);
  options.variables = variables.empty() ? nullptr : &variables;
  ChatPrompt prompt;
  try {
    prompt.text = model.text->render_chat(messages, options);
  } catch (const std::invalid_argument& error) {
    reject("messages", fmt::format("The chat template refuses the messages: {}", error.what()));
  }
  prompt.answer_start = answer_start(prompt.text, options, messages, model.reasoning);
  return prompt;
}

}  // namespace fastfd::gateway
