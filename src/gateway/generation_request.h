#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/request.h"
#include "fastfd/gateway/gateway_server.h"
#include "gateway/reasoning_splitter.h"

namespace fastfd::gateway {

inline constexpr std::uint32_t kMaxChoices = 16;
inline constexpr std::uint32_t kMaxStopStrings = 16;
inline constexpr std::uint32_t kMaxLogprobs = 20;

/// One prompt of a request, ready for the engine.
struct TokenizedPrompt {
  std::vector<TokenId> tokens;
  std::uint32_t max_tokens = 0;
  std::string echo_text;  ///< completions with `echo`: what comes before the answer
};

/// A chat or completion request, checked: every value is legal for model and engine.
struct GenerationRequest {
  bool chat = false;
  std::vector<TokenizedPrompt> prompts;  ///< one for chat
  std::uint32_t num_choices = 1;         ///< a prompt
  SamplingParams sampling;               ///< all but the seed
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop_strings;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  AnswerStart answer_start = AnswerStart::kContent;
  bool include_reasoning = true;  ///< else what a model thinks is left out of the answer
  std::int32_t priority = 0;
  std::string cache_salt;
};

/// Reads the body of /v1/chat/completions (`chat`) or /v1/completions and tokenizes its prompts.
/// Throws RequestRejected. May run on any thread.
GenerationRequest read_generation_request(std::string_view body, bool chat,
                                          const ServedModel& model, std::uint32_t max_sequences);

}  // namespace fastfd::gateway
