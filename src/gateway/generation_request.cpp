#include "gateway/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/api_error.h"
#include "gateway/chat_reader.h"
#include "gateway/param_reader.h"
#include "gateway/prompt_reader.h"

namespace fastfd::gateway {
namespace {

using json = RequestJson;

constexpr std::size_t kMaxStopTokenIds = 128;
constexpr std::size_t kMaxLogitBiases = 1024;
constexpr std::size_t kMaxCacheSaltBytes = 256;
constexpr std::uint32_t kDefaultCompletionTokens = 16;

enum class Accepts : std::uint8_t { kBoth, kChat, kCompletion };

/// A parameter that changes the answer in a way FastFD can't: ignoring it would be a wrong answer.
/// null, false, empty and `neutral` ask for nothing and pass.
struct UnsupportedParam {
  const char* name;
  Accepts endpoint;
  const char* neutral;  ///< as JSON, or nullptr
};

constexpr std::array kUnsupportedParams = {
    UnsupportedParam{"chat_template", Accepts::kChat, nullptr},
    UnsupportedParam{"functions", Accepts::kChat, nullptr},
    UnsupportedParam{"function_call", Accepts::kChat, R"("none")"},
    UnsupportedParam{"response_format", Accepts::kBoth, R"({"type":"text"})"},
    UnsupportedParam{"modalities", Accepts::kChat, R"(["text"])"},
    UnsupportedParam{"audio", Accepts::kChat, nullptr},
    UnsupportedParam{"prediction", Accepts::kChat, nullptr},
    UnsupportedParam{"web_search_options", Accepts::kChat, nullptr},
    UnsupportedParam{"suffix", Accepts::kCompletion, nullptr},
    UnsupportedParam{"echo", Accepts::kChat, nullptr},
    UnsupportedParam{"length_penalty", Accepts::kBoth, "1.0"},
    UnsupportedParam{"use_beam_search", Accepts::kBoth, nullptr},
    UnsupportedParam{"prompt_logprobs", Accepts::kBoth, nullptr},
    UnsupportedParam{"bad_words", Accepts::kBoth, nullptr},
    UnsupportedParam{"allowed_token_ids", Accepts::kBoth, nullptr},
    UnsupportedParam{"include_stop_str_in_output", Accepts::kBoth, nullptr},
    UnsupportedParam{"skip_special_tokens", Accepts::kBoth, "true"},
    UnsupportedParam{"truncate_prompt_tokens", Accepts::kBoth, nullptr},
    UnsupportedParam{"prompt_embeds", Accepts::kCompletion, nullptr},
    UnsupportedParam{"structured_outputs", Accepts::kBoth, nullptr},
    UnsupportedParam{"guided_json", Accepts::kBoth, nullptr},
    UnsupportedParam{"guided_regex", Accepts::kBoth, nullptr},
    UnsupportedParam{"guided_choice", Accepts::kBoth, nullptr},
    UnsupportedParam{"guided_grammar", Accepts::kBoth, nullptr},
};

bool asks_for_nothing(const json& value, const char* neutral) {
  if (value == json(false) || ((value.is_structured() || value.is_string()) && value.empty()) ||
      (value.is_string() && value.get_ref<const std::string&>().empty())) {
    return true;
  }
  return neutral != nullptr && value == json::parse(neutral);
}

void refuse_unsupported(const ParamReader& params, bool chat) {
  for (const UnsupportedParam& unsupported : kUnsupportedParams) {
    if (unsupported.endpoint == (chat ? Accepts::kCompletion : Accepts::kChat)) {
      continue;
    }
    const json* value = params.find(unsupported.name);
    if (value == nullptr || asks_for_nothing(*value, unsupported.neutral)) {
      continue;
    }
    std::string message = fmt::format("{} is {}, which is not supported; remove it",
                                      unsupported.name, show_value(*value));
    if (unsupported.neutral != nullptr) {
      message += fmt::format(" or set it to {}", unsupported.neutral);
    }
    reject(unsupported.name, message + ".", "unsupported_parameter");
  }
}

std::vector<std::string> read_stop(const ParamReader& params) {
  const json* value = params.find("stop");
  if (value == nullptr) {
    return {};
  }
  const std::string legal =
      fmt::format("a non-empty string or a list of up to {} of them", kMaxStopStrings);
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() <= kMaxStopStrings) {
    for (const json& entry : *value) {
      if (!entry.is_string()) {
        reject_value("stop", *value, legal, "invalid_type");
      }
      stops.push_back(entry.get<std::string>());
    }
  } else {
    reject_value("stop", *value, legal, value->is_array() ? "invalid_value" : "invalid_type");
  }
  if (std::any_of(stops.begin(), stops.end(), [](const auto& stop) { return stop.empty(); })) {
    reject_value("stop", *value, legal);
  }
  return stops;
}

std::vector<std::pair<TokenId, float>> read_logit_bias(const ParamReader& params,
                                                       std::uint32_t vocab_size) {
  const json* value = params.find("logit_bias");
  if (value == nullptr) {
    return {};
  }
  if (!value->is_object() || value->size() > kMaxLogitBiases) {
    reject_value("logit_bias", *value,
                 fmt::format("an object of up to {} token ids with a bias each", kMaxLogitBiases),
                 value->is_object() ? "invalid_value" : "invalid_type");
  }
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [key, bias] : value->items()) {
    TokenId token = kNoToken;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0 ||
        static_cast<std::uint32_t>(token) >= vocab_size) {
      reject("logit_bias", fmt::format("logit_bias has the key {}; keys must be token ids in "
                                       "[0, {}), written as strings.",
                                       show_value(key), vocab_size));
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100.0 && bias.get<double>() <= 100.0)) {
      reject("logit_bias", fmt::format("logit_bias[\"{}\"] is {}; it must be a number in "
                                       "[-100, 100].",
                                       key, show_value(bias)));
    }
    biases.emplace_back(token, bias.get<float>());
  }
  std::sort(biases.begin(), biases.end());
  return biases;
}

/// Number of log-probabilities a position, -1 for none: chat has a switch and a count, completions
/// a count.
std::int32_t read_logprobs(const ParamReader& params, bool chat) {
  if (!chat) {
    const auto count = params.integer("logprobs", 0, kMaxLogprobs);
    return static_cast<std::int32_t>(count.value_or(-1));
  }
  const bool wanted = params.boolean("logprobs").value_or(false);
  const auto count = params.integer("top_logprobs", 0, kMaxLogprobs);
  if (count && *count > 0 && !wanted) {
    reject("top_logprobs",
           fmt::format("top_logprobs is {}, which needs logprobs to be true.", *count));
  }
  return wanted ? static_cast<std::int32_t>(count.value_or(0)) : -1;
}

std::vector<TokenId> read_stop_token_ids(const ParamReader& params, const ServedModel& model) {
  std::vector<TokenId> ids = model.eos_token_ids;
  if (const json* value = params.find("stop_token_ids"); value != nullptr) {
    if (value->is_array() && value->size() > kMaxStopTokenIds) {
      reject_value("stop_token_ids", *value,
                   fmt::format("a list of up to {} token ids", kMaxStopTokenIds));
    }
    const auto own = read_token_ids(*value, "stop_token_ids", model.vocab_size);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

SamplingParams read_sampling(const ParamReader& params, bool chat, const ServedModel& model) {
  constexpr NumberRange kTemperature{0.0, 2.0, false, false, "[0, 2]"};
  constexpr NumberRange kTopP{0.0, 1.0, true, false, "(0, 1]"};
  constexpr NumberRange kMinP{0.0, 1.0, false, true, "[0, 1)"};
  constexpr NumberRange kPenalty{-2.0, 2.0, false, false, "[-2, 2]"};
  constexpr NumberRange kRepetition{0.01, 100.0, false, false, "[0.01, 100]"};
  const SamplingDefaults& defaults = model.sampling;
  const std::uint32_t vocab_size = model.vocab_size;
  const auto number = [&params](const char* name, const NumberRange& range, float fallback) {
    return static_cast<float>(params.number(name, range).value_or(fallback));
  };
  SamplingParams sampling;
  sampling.temperature =
      number("temperature", kTemperature, defaults.do_sample ? defaults.temperature : 0.0F);
  sampling.top_p = number("top_p", kTopP, defaults.top_p);
  // Tiny positive doubles would become the illegal 0 as a float.
  sampling.top_p = std::max(sampling.top_p, std::numeric_limits<float>::min());
  sampling.min_p = std::min(number("min_p", kMinP, defaults.min_p), 1.0F - 1e-7F);
  sampling.repetition_penalty =
      number("repetition_penalty", kRepetition, defaults.repetition_penalty);
  sampling.presence_penalty = number("presence_penalty", kPenalty, 0.0F);
  sampling.frequency_penalty = number("frequency_penalty", kPenalty, 0.0F);
  const auto top_k = params.integer("top_k", -1, std::numeric_limits<std::int32_t>::max());
  sampling.top_k = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(top_k.value_or(defaults.top_k), 0, vocab_size));
  sampling.num_logprobs = read_logprobs(params, chat);
  sampling.logit_bias = read_logit_bias(params, vocab_size);
  sampling.stop_token_ids = read_stop_token_ids(params, model);
  sampling.ignore_eos = params.boolean("ignore_eos").value_or(false);
  return sampling;
}

/// OpenAI's newer name of max_tokens exists for chat only.
std::optional<std::uint32_t> read_max_tokens(const ParamReader& params, bool chat) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  auto max_tokens = params.integer("max_tokens", 1, kMost);
  if (chat) {
    if (const auto newer = params.integer("max_completion_tokens", 1, kMost)) {
      max_tokens = newer;
    }
  }
  return max_tokens ? std::optional(static_cast<std::uint32_t>(*max_tokens)) : std::nullopt;
}

/// Fits the answer into what the prompt leaves of the context, or rejects with the arithmetic.
std::uint32_t fit_max_tokens(std::size_t num_prompt_tokens, std::optional<std::uint32_t> wanted,
                             bool chat, std::uint32_t max_model_len) {
  const char* param = chat ? "messages" : "prompt";
  if (num_prompt_tokens == 0) {
    reject(param, fmt::format("{} has no tokens; it must have at least one.", param));
  }
  const std::string limit =
      fmt::format("This model's maximum context length is {} tokens.", max_model_len);
  if (num_prompt_tokens >= max_model_len) {
    reject(param,
           fmt::format("{} The prompt has {} tokens, which leaves no room for an answer. Shorten "
                       "it to at most {} tokens.",
                       limit, num_prompt_tokens, max_model_len - 1),
           "context_length_exceeded");
  }
  const auto room = static_cast<std::uint32_t>(max_model_len - num_prompt_tokens);
  if (!wanted) {
    return chat ? room : std::min(room, kDefaultCompletionTokens);
  }
  if (*wanted > room) {
    reject(param,
           fmt::format("{} The request asks for {} tokens ({} in the prompt + {} for the answer). "
                       "Shorten the prompt or set max_tokens to at most {}.",
                       limit, num_prompt_tokens + *wanted, num_prompt_tokens, *wanted, room),
           "context_length_exceeded");
  }
  return *wanted;
}

void read_streaming(const ParamReader& params, GenerationRequest& request) {
  request.stream = params.boolean("stream").value_or(false);
  const json* options = params.find("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!options->is_object()) {
    reject_value("stream_options", *options, R"(an object like {"include_usage": true})",
                 "invalid_type");
  }
  if (!request.stream) {
    reject("stream_options", "stream_options is only allowed when stream is true.");
  }
  const auto usage = options->find("include_usage");
  if (usage != options->end() && !usage->is_null()) {
    if (!usage->is_boolean()) {
      reject_value("stream_options.include_usage", *usage, "true or false", "invalid_type");
    }
    request.include_usage = usage->get<bool>();
  }
}

void read_choices(const ParamReader& params, GenerationRequest& request) {
  request.num_choices = static_cast<std::uint32_t>(params.integer("n", 1, kMaxChoices).value_or(1));
  const auto best_of = params.integer("best_of", 1, std::numeric_limits<std::int32_t>::max());
  if (best_of && *best_of != request.num_choices) {
    reject("best_of",
           fmt::format("best_of is {}; only best_of equal to n ({}) is supported.", *best_of,
                       request.num_choices),
           "unsupported_parameter");
  }
}

std::vector<TokenizedPrompt> read_prompts(const ParamReader& params, GenerationRequest& request,
                                          const ServedModel& model, std::uint32_t max_sequences) {
  std::vector<PromptTokens> prompts;
  if (request.chat) {
    const ChatPrompt prompt = read_chat_prompt(params, model);
    request.answer_start = prompt.answer_start;
    request.include_reasoning = params.boolean("include_reasoning").value_or(true);
    prompts.push_back({encode_text(model, prompt.text, false, "messages"), {}});
  } else {
    prompts = read_completion_prompts(params, model);
  }
  if (prompts.size() * request.num_choices > max_sequences) {
    reject("prompt", fmt::format("The request asks for {} sequences ({} prompts x n = {}); at most "
                                 "{} are allowed in one request.",
                                 prompts.size() * request.num_choices, prompts.size(),
                                 request.num_choices, max_sequences));
  }
  const auto max_tokens = read_max_tokens(params, request.chat);
  std::vector<TokenizedPrompt> tokenized;
  tokenized.reserve(prompts.size());
  for (PromptTokens& prompt : prompts) {
    TokenizedPrompt result;
    result.max_tokens =
        fit_max_tokens(prompt.tokens.size(), max_tokens, request.chat, model.max_model_len);
    if (request.echo) {
      result.echo_text = prompt.text.empty()
                             ? model.text->decode(prompt.tokens, /*skip_special_tokens=*/true)
                             : std::move(prompt.text);
    }
    result.tokens = std::move(prompt.tokens);
    tokenized.push_back(std::move(result));
  }
  return tokenized;
}

}  // namespace

GenerationRequest read_generation_request(std::string_view body, bool chat,
                                          const ServedModel& model, std::uint32_t max_sequences) {
  const json object = parse_json_object(body);
  const ParamReader params(object);
  check_model_name(params, model);
  refuse_unsupported(params, chat);
  GenerationRequest request;
  request.chat = chat;
  read_choices(params, request);
  read_streaming(params, request);
  request.sampling = read_sampling(params, chat, model);
  request.stop_strings = read_stop(params);
  if (const auto seed = params.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::int64_t>::max())) {
    request.seed = static_cast<std::uint64_t>(*seed);
  }
  request.priority = static_cast<std::int32_t>(params.integer("priority", -1000, 1000).value_or(0));
  request.cache_salt = params.string("cache_salt").value_or("");
  if (request.cache_salt.size() > kMaxCacheSaltBytes) {
    reject("cache_salt", fmt::format("cache_salt has {} bytes; at most {} are allowed.",
                                     request.cache_salt.size(), kMaxCacheSaltBytes));
  }
  request.echo = !chat && params.boolean("echo").value_or(false);
  if (request.echo && request.sampling.num_logprobs >= 0) {
    reject("echo", "echo together with logprobs is not supported; drop one of them.",
           "unsupported_parameter");
  }
  request.prompts = read_prompts(params, request, model, max_sequences);
  const std::uint32_t answer_limit =
      std::min_element(request.prompts.begin(), request.prompts.end(),
                       [](const auto& a, const auto& b) { return a.max_tokens < b.max_tokens; })
          ->max_tokens;
  request.sampling.min_tokens =
      static_cast<std::uint32_t>(params.integer("min_tokens", 0, answer_limit).value_or(0));
  return request;
}

}  // namespace fastfd::gateway
