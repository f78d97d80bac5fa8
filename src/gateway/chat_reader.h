#pragma once

#include <string>

#include "fastfd/gateway/gateway_server.h"
#include "gateway/param_reader.h"
#include "gateway/reasoning_splitter.h"

namespace fastfd::gateway {

struct ChatPrompt {
  std::string text;
  AnswerStart answer_start = AnswerStart::kContent;
};

/// `messages` through the chat template, with `tools`, `documents`, `chat_template_kwargs`,
/// `add_generation_prompt` and `continue_final_message`.
ChatPrompt read_chat_prompt(const ParamReader& params, const ServedModel& model);

}  // namespace fastfd::gateway
