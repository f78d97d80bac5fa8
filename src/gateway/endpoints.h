#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/engine_client.h"
#include "fastfd/gateway/gateway_server.h"
#include "gateway/api_error.h"

namespace fastfd::gateway {

/// A response that is written at once.
struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

enum class Endpoint {
  kNotFound,
  kChatCompletions,
  kCompletions,
  kModels,
  kModel,
  kHealth,
  kReady,
  kMetrics,
  kTokenize,
  kDetokenize,
};

struct EndpointMatch {
  Endpoint endpoint = Endpoint::kNotFound;
  const char* label = "unknown";  ///< for metrics: bounded in number
  const char* method = "GET";     ///< the one besides HEAD (of GET) and OPTIONS
  std::string argument;           ///< kModel: the name asked for
};

/// "http://host/path" as "/path", whoever the host is: servers must take the form that clients of
/// proxies use (RFC 9112, 3.2.2). Other targets stay as they are.
std::string origin_form(std::string_view target);

/// By the path of a request target in origin form; the query is ignored.
EndpointMatch match_endpoint(std::string_view target);

/// The answer if it doesn't depend on the endpoint's own work: 404, 405, OPTIONS.
std::optional<HttpResponse> answer_by_method(const EndpointMatch& match, std::string_view method,
                                             std::string_view target);

HttpResponse to_response(const ApiError& error, std::chrono::seconds retry_after);

HttpResponse list_models(const ServedModel& model, std::int64_t created);
HttpResponse describe_model(const ServedModel& model, const std::string& name,
                            std::int64_t created);
/// {"model", "prompt" | "messages", "add_special_tokens"} -> {"count","max_model_len","tokens"}.
/// Throws RequestRejected, as detokenize.
HttpResponse tokenize(std::string_view body, const ServedModel& model);
/// {"model", "tokens"} -> {"prompt"}.
HttpResponse detokenize(std::string_view body, const ServedModel& model);

}  // namespace fastfd::gateway
