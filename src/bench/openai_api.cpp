#include "bench/openai_api.h"

#include <nlohmann/json.hpp>

namespace fastfd::bench {
namespace {

using nlohmann::json;

bool is_text(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return false;
  }
  const auto* text = found->get_ptr<const std::string*>();
  return text != nullptr && !text->empty();
}

std::uint32_t count_of(const json& usage, const char* key) {
  const auto found = usage.find(key);
  return found != usage.end() && found->is_number_unsigned() ? found->get<std::uint32_t>() : 0;
}

void read_choice(const json& choice, StreamEvent& event) {
  if (!choice.is_object()) {
    event.malformed = true;
    return;
  }
  event.finished = is_text(choice, "finish_reason");
  event.has_token = is_text(choice, "text");
  const auto delta = choice.find("delta");
  if (delta != choice.end() && delta->is_object()) {
    event.has_token = is_text(*delta, "content") || is_text(*delta, "reasoning_content") ||
                      is_text(*delta, "reasoning") || delta->contains("tool_calls");
  }
}

}  // namespace

const char* endpoint_path(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::string request_body(const Dialect& dialect, const WorkItem& item) {
  json body{{"model", dialect.model}, {"max_tokens", item.output_len}, {"stream", true}};
  if (dialect.endpoint == Endpoint::kChat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", item.text}}});
  } else if (item.tokens.empty()) {
    body["prompt"] = item.text;
  } else {
    body["prompt"] = item.tokens;
  }
  if (dialect.usage) {
    body["stream_options"] = {{"include_usage", true}};
  }
  if (dialect.ignore_eos) {
    body["ignore_eos"] = true;
    body["min_tokens"] = item.output_len;
  }
  if (dialect.temperature) {
    body["temperature"] = *dialect.temperature;
  }
  // Datasets hold text that is not valid UTF-8; a replaced character is better than no request.
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

StreamEvent parse_stream_event(std::string_view data) {
  StreamEvent event;
  if (data == "[DONE]") {
    event.done = true;
    return event;
  }
  const json chunk = json::parse(data, nullptr, false);
  if (!chunk.is_object()) {
    event.malformed = true;
    return event;
  }
  if (chunk.contains("error")) {
    event.error = error_message(std::string(data));
    return event;
  }
  const auto usage = chunk.find("usage");
  if (usage != chunk.end() && usage->is_object()) {
    event.has_usage = true;
    event.prompt_tokens = count_of(*usage, "prompt_tokens");
    event.output_tokens = count_of(*usage, "completion_tokens");
  }
  const auto choices = chunk.find("choices");
  if (choices == chunk.end() || !choices->is_array()) {
    event.malformed = !event.has_usage;
  } else if (!choices->empty()) {
    read_choice(choices->front(), event);
  }
  return event;
}

std::string error_message(const std::string& body) {
  constexpr std::size_t kMaxChars = 300;
  const json parsed = json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error")) {
    const json& error = parsed["error"];
    if (error.is_string()) {
      return error.get<std::string>();
    }
    if (error.is_object() && is_text(error, "message")) {
      return error["message"].get<std::string>();
    }
  }
  return body.substr(0, kMaxChars);
}

std::string first_model(const std::string& body) {
  const json parsed = json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("data") && parsed["data"].is_array()) {
    for (const json& model : parsed["data"]) {
      if (model.is_object() && is_text(model, "id")) {
        return model["id"].get<std::string>();
      }
    }
  }
  return "";
}

}  // namespace fastfd::bench
