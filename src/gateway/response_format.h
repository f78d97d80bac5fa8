#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fastfd/core/request.h"
#include "fastfd/gateway/text_service.h"

namespace fastfd::gateway {

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::uint64_t cached_tokens = 0;
};

/// A piece of an answer, or all of it. Only chats have reasoning.
struct AnswerText {
  std::string_view content;
  std::string_view reasoning;
  bool is_split = false;  ///< the model thinks: a whole answer says so even if it has no reasoning
};

/// Collects the log-probabilities of one choice as the JSON that the endpoint's schema wants.
class LogprobsJson {
 public:
  explicit LogprobsJson(bool chat) : chat_(chat) {}

  void add(const TokenEvent& event, const TextService& text);
  bool empty() const { return entries_.empty(); }
  /// The JSON value of what was added since the last take(); "null" if nothing was.
  std::string take();

 private:
  void add_chat(const TokenEvent& event, const TextService& text);
  void add_completion(const TokenEvent& event, const TextService& text);

  bool chat_;
  std::string entries_;         // chat: elements of "content"; completions: of "tokens"
  std::string token_logprobs_;  // completions only, as all below
  std::string top_logprobs_;
  std::string text_offsets_;
  std::uint64_t text_offset_ = 0;  // characters before the next token
};

/// Writes the objects of /v1/chat/completions and /v1/completions for one response. Everything that
/// is the same in all its chunks is formatted once: a chunk costs a few appends.
class ResponseFormatter {
 public:
  /// `stream`: the append_..._event functions will be used, else the ..._body ones.
  ResponseFormatter(bool chat, bool stream, bool include_usage, std::string_view id,
                    std::int64_t created, std::string_view model);

  /// Server-sent events, appended to `out`; `logprobs` is a JSON value. A chat choice begins with
  /// its role, apart from the text.
  void append_role_event(std::string& out, std::uint32_t index) const;
  void append_text_event(std::string& out, std::uint32_t index, const AnswerText& text,
                         std::string_view logprobs, FinishReason finish) const;
  void append_usage_event(std::string& out, const Usage& usage) const;
  static void append_error_event(std::string& out, std::string_view error_json);
  static void append_done_event(std::string& out) { out += "data: [DONE]\n\n"; }

  bool chat() const { return chat_; }

  /// The body of a response that is not streamed: begin, each choice, end.
  std::string begin_body() const;
  void append_choice(std::string& body, std::uint32_t index, const AnswerText& text,
                     std::string_view logprobs, FinishReason finish) const;
  void end_body(std::string& body, const Usage& usage) const;

 private:
  void append_event_end(std::string& out, FinishReason finish) const;

  bool chat_;
  std::string prefix_;  // [data: ]{"id":...,"choices":[
  std::string_view event_suffix_;
};

}  // namespace fastfd::gateway
