#include "gateway/response_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

/// What OpenAI reports for "so unlikely that it has no number".
constexpr float kLowestLogprob = -9999.0F;

void append_number(std::string& out, std::uint64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

void append_logprob(std::string& out, float logprob) {
  append_json_float(out, std::max(logprob, kLowestLogprob));
}

/// A token as a JSON string. Parts of characters take the form that OpenAI gives them:
/// "bytes:\xe2\x80".
std::string readable_token(const std::string& bytes) {
  if (is_utf8(bytes)) {
    return bytes;
  }
  std::string text = "bytes:";
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

void append_chat_logprob(std::string& out, TokenId token, float logprob, const TextService& text) {
  const std::string bytes = text.token_bytes(token);
  out += R"({"token":)";
  append_json_string(out, readable_token(bytes));
  out += R"(,"logprob":)";
  append_logprob(out, logprob);
  out += R"(,"bytes":[)";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    out += i == 0 ? "" : ",";
    append_number(out, static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

void append_comma(std::string& list) {
  if (!list.empty()) {
    list += ',';
  }
}

void append_usage(std::string& out, const Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
}

void append_finish(std::string& out, FinishReason finish) {
  append_json_string_or_null(out, to_string(finish));
}

std::string common_fields(std::string_view id, std::string_view object, std::int64_t created,
                          std::string_view model) {
  std::string json = R"({"id":)";
  append_json_string(json, id);
  json += R"(,"object":)";
  append_json_string(json, object);
  fmt::format_to(std::back_inserter(json), R"(,"created":{},"model":)", created);
  append_json_string(json, model);
  json += R"(,"system_fingerprint":"fastfd","choices":[)";
  return json;
}

}  // namespace

void LogprobsJson::add(const TokenEvent& event, const TextService& text) {
  if (chat_) {
    add_chat(event, text);
  } else {
    add_completion(event, text);
  }
}

void LogprobsJson::add_chat(const TokenEvent& event, const TextService& text) {
  append_comma(entries_);
  append_chat_logprob(entries_, event.token, event.logprob, text);
  entries_ += R"(,"top_logprobs":[)";
  bool first = true;
  for (const TokenLogprob& top : event.top_logprobs) {
    entries_ += first ? "" : ",";
    first = false;
    append_chat_logprob(entries_, top.token, top.logprob, text);
    entries_ += '}';
  }
  entries_ += "]}";
}

void LogprobsJson::add_completion(const TokenEvent& event, const TextService& text) {
  const std::string token = readable_token(text.token_bytes(event.token));
  for (std::string* list : {&entries_, &token_logprobs_, &top_logprobs_, &text_offsets_}) {
    append_comma(*list);
  }
  append_json_string(entries_, token);
  append_logprob(token_logprobs_, event.logprob);
  append_number(text_offsets_, text_offset_);
  text_offset_ += count_code_points(token);
  // An object: tokens that read the same can't both be keys.
  std::vector<std::string> keys = {token};
  top_logprobs_ += '{';
  append_json_string(top_logprobs_, token);
  top_logprobs_ += ':';
  append_logprob(top_logprobs_, event.logprob);
  for (const TokenLogprob& top : event.top_logprobs) {
    std::string key = readable_token(text.token_bytes(top.token));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      continue;
    }
    top_logprobs_ += ',';
    append_json_string(top_logprobs_, key);
    top_logprobs_ += ':';
    append_logprob(top_logprobs_, top.logprob);
    keys.push_back(std::move(key));
  }
  top_logprobs_ += '}';
}

std::string LogprobsJson::take() {
  if (entries_.empty()) {
    return "null";
  }
  std::string json;
  if (chat_) {
    json = R"({"content":[)" + entries_ + R"(],"refusal":null})";
  } else {
    json = R"({"tokens":[)" + entries_ + R"(],"token_logprobs":[)" + token_logprobs_ +
           R"(],"top_logprobs":[)" + top_logprobs_ + R"(],"text_offset":[)" + text_offsets_ + "]}";
  }
  for (std::string* list : {&entries_, &token_logprobs_, &top_logprobs_, &text_offsets_}) {
    list->clear();
  }
  return json;
}

ResponseFormatter::ResponseFormatter(bool chat, bool stream, bool include_usage,
                                     std::string_view id, std::int64_t created,
                                     std::string_view model)
    : chat_(chat), event_suffix_(include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n") {
  std::string_view object = chat ? "chat.completion" : "text_completion";
  if (stream) {
    prefix_ = "data: ";
    object = chat ? "chat.completion.chunk" : object;
  }
  prefix_ += common_fields(id, object, created, model);
}

void ResponseFormatter::append_event_end(std::string& out, FinishReason finish) const {
  out += R"(,"finish_reason":)";
  append_finish(out, finish);
  out += event_suffix_;
}

void ResponseFormatter::append_role_event(std::string& out, std::uint32_t index) const {
  out += prefix_;
  out += R"({"index":)";
  append_number(out, index);
  out += R"(,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null)";
  append_event_end(out, FinishReason::kNone);
}

void ResponseFormatter::append_text_event(std::string& out, std::uint32_t index,
                                          const AnswerText& text, std::string_view logprobs,
                                          FinishReason finish) const {
  out += prefix_;
  out += R"({"index":)";
  append_number(out, index);
  if (!chat_) {
    out += R"(,"text":)";
    append_json_string(out, text.content);
  } else {
    out += R"(,"delta":{)";
    if (!text.reasoning.empty()) {
      out += R"("reasoning_content":)";
      append_json_string(out, text.reasoning);
    }
    if (!text.content.empty()) {
      out += text.reasoning.empty() ? R"("content":)" : R"(,"content":)";
      append_json_string(out, text.content);
    }
    out += '}';
  }
  out += R"(,"logprobs":)";
  out += logprobs;
  append_event_end(out, finish);
}

void ResponseFormatter::append_usage_event(std::string& out, const Usage& usage) const {
  out += prefix_;
  out += R"(],"usage":)";
  append_usage(out, usage);
  out += "}\n\n";
}

void ResponseFormatter::append_error_event(std::string& out, std::string_view error_json) {
  out += "data: ";
  out += error_json;
  out += "\n\n";
}

std::string ResponseFormatter::begin_body() const { return prefix_; }

void ResponseFormatter::append_choice(std::string& body, std::uint32_t index,
                                      const AnswerText& text, std::string_view logprobs,
                                      FinishReason finish) const {
  body += index == 0 ? R"({"index":)" : R"(,{"index":)";
  append_number(body, index);
  if (chat_) {
    body += R"(,"message":{"role":"assistant",)";
    if (text.is_split) {
      body += R"("reasoning_content":)";
      append_json_string_or_null(body, text.reasoning);
      body += ',';
    }
    body += R"("content":)";
    if (text.reasoning.empty()) {
      append_json_string(body, text.content);
    } else {
      append_json_string_or_null(body, text.content);
    }
    body += R"(,"refusal":null})";
  } else {
    body += R"(,"text":)";
    append_json_string(body, text.content);
  }
  body += R"(,"logprobs":)";
  body += logprobs;
  body += R"(,"finish_reason":)";
  append_finish(body, finish);
  body += '}';
}

void ResponseFormatter::end_body(std::string& body, const Usage& usage) const {
  body += R"(],"usage":)";
  append_usage(body, usage);
  body += '}';
}

}  // namespace fastfd::gateway
