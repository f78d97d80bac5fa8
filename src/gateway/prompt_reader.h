#pragma once

#include <string>
#include <vector>

#include "fastfd/gateway/gateway_server.h"
#include "gateway/param_reader.h"

namespace fastfd::gateway {

/// Tokens of `text`, which came as `param`; a text that can't be tokenized is rejected.
std::vector<TokenId> encode_text(const ServedModel& model, const std::string& text,
                                 bool add_special_tokens, const char* param);

/// `model`, if the request names one, must be the model served: 404 model_not_found otherwise.
void check_model_name(const ParamReader& params, const ServedModel& model);

/// One entry of `prompt`; text prompts keep their text for `echo`.
struct PromptTokens {
  std::vector<TokenId> tokens;
  std::string text;  ///< empty for prompts given as tokens
};

/// `prompt`: a string, a list of strings, a list of token ids or a list of such lists.
std::vector<PromptTokens> read_completion_prompts(const ParamReader& params,
                                                  const ServedModel& model);

}  // namespace fastfd::gateway
