#include "gateway/endpoints.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "gateway/chat_reader.h"
#include "gateway/json_text.h"
#include "gateway/param_reader.h"
#include "gateway/prompt_reader.h"

namespace fastfd::gateway {
namespace {

using json = RequestJson;

constexpr std::string_view kModelPrefix = "/v1/models/";

struct Route {
  std::string_view path;
  Endpoint endpoint;
  const char* method;
};

constexpr std::array kRoutes = {
    Route{"/v1/chat/completions", Endpoint::kChatCompletions, "POST"},
    Route{"/v1/completions", Endpoint::kCompletions, "POST"},
    Route{"/v1/models", Endpoint::kModels, "GET"},
    Route{"/health", Endpoint::kHealth, "GET"},
    Route{"/ready", Endpoint::kReady, "GET"},
    Route{"/metrics", Endpoint::kMetrics, "GET"},
    Route{"/tokenize", Endpoint::kTokenize, "POST"},
    Route{"/detokenize", Endpoint::kDetokenize, "POST"},
};

std::string percent_decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* digits = text.data() + i + 1;
      const auto result = std::from_chars(digits, digits + 2, value, 16);
      if (result.ec == std::errc() && result.ptr == digits + 2) {
        decoded += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    decoded += text[i];
  }
  return decoded;
}

std::string allowed_methods(const EndpointMatch& match) {
  return std::string_view(match.method) == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

json model_object(const ServedModel& model, std::int64_t created) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "fastfd"},
          {"max_model_len", model.max_model_len}};
}

}  // namespace

std::string origin_form(std::string_view target) {
  std::size_t authority = 0;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() > scheme.size() &&
        ::strncasecmp(target.data(), scheme.data(), scheme.size()) == 0) {
      authority = scheme.size();
    }
  }
  const std::size_t path = std::min(target.find_first_of("/?", authority), target.size());
  if (authority == 0 || path == authority) {
    return std::string(target);
  }
  target.remove_prefix(path);
  return target.starts_with('/') ? std::string(target) : fmt::format("/{}", target);
}

EndpointMatch match_endpoint(std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  for (const Route& route : kRoutes) {
    if (route.path == path) {
      return {route.endpoint, route.path.data(), route.method, {}};
    }
  }
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    return {Endpoint::kModel, "/v1/models/{model}", "GET",
            percent_decode(path.substr(kModelPrefix.size()))};
  }
  return {};
}

std::optional<HttpResponse> answer_by_method(const EndpointMatch& match, std::string_view method,
                                             std::string_view target) {
  if (method == "OPTIONS" && (target == "*" || match.endpoint != Endpoint::kNotFound)) {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back(
        "Allow", target == "*" ? "GET, HEAD, POST, OPTIONS" : allowed_methods(match));
    return response;
  }
  ApiError error;
  if (match.endpoint == Endpoint::kNotFound) {
    error.status = 404;
    error.message = fmt::format("There is no endpoint {}.", is_utf8(target) ? target : "like that");
    error.code = "unknown_url";
    return to_response(error, {});
  }
  const bool head_of_get = method == "HEAD" && std::string_view(match.method) == "GET";
  if (method == match.method || head_of_get) {
    return std::nullopt;
  }
  error.status = 405;
  error.message = fmt::format("{} does not take {}; use {}.", match.label, method, match.method);
  error.code = "method_not_allowed";
  HttpResponse response = to_response(error, {});
  response.headers.emplace_back("Allow", allowed_methods(match));
  return response;
}

HttpResponse to_response(const ApiError& error, std::chrono::seconds retry_after) {
  HttpResponse response;
  response.status = error.status;
  response.body = error.to_json();
  if (error.retry_after) {
    response.headers.emplace_back("Retry-After", std::to_string(retry_after.count()));
  }
  return response;
}

HttpResponse list_models(const ServedModel& model, std::int64_t created) {
  HttpResponse response;
  response.body =
      json{{"object", "list"}, {"data", json::array({model_object(model, created)})}}.dump();
  return response;
}

HttpResponse describe_model(const ServedModel& model, const std::string& name,
                            std::int64_t created) {
  if (is_utf8(name)) {
    const json params = {{"model", name}};
    check_model_name(ParamReader(params), model);
  } else {
    reject("model", "The model's name is not UTF-8.");
  }
  HttpResponse response;
  response.body = model_object(model, created).dump();
  return response;
}

HttpResponse tokenize(std::string_view body, const ServedModel& model) {
  const json object = parse_json_object(body);
  const ParamReader params(object);
  check_model_name(params, model);
  const bool chat = params.find("messages") != nullptr;
  if (chat == (params.find("prompt") != nullptr)) {
    reject("prompt", "Give either prompt (a string) or messages (a list).",
           "missing_required_parameter");
  }
  const std::string text =
      chat ? read_chat_prompt(params, model).text : params.string("prompt").value_or("");
  // The chat template writes its own special tokens.
  const bool add_special_tokens = params.boolean("add_special_tokens").value_or(!chat);
  const std::vector<TokenId> tokens =
      encode_text(model, text, add_special_tokens, chat ? "messages" : "prompt");
  HttpResponse response;
  response.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}]}})", tokens.size(),
                              model.max_model_len, fmt::join(tokens, ","));
  return response;
}

HttpResponse detokenize(std::string_view body, const ServedModel& model) {
  const json object = parse_json_object(body);
  const ParamReader params(object);
  check_model_name(params, model);
  const json* list = params.find("tokens");
  if (list == nullptr) {
    reject("tokens", "tokens is missing; it must be a list of token ids.",
           "missing_required_parameter");
  }
  const auto tokens = read_token_ids(*list, "tokens", model.vocab_size);
  HttpResponse response;
  response.body = R"({"prompt":)";
  append_json_string(response.body, model.text->decode(tokens, /*skip_special_tokens=*/false));
  response.body += '}';
  return response;
}

}  // namespace fastfd::gateway
