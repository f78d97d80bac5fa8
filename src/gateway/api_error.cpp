#include "gateway/api_error.h"

#include "gateway/json_text.h"

namespace fastfd::gateway {

std::string ApiError::to_json() const {
  std::string json = R"({"error":{"message":)";
  append_json_string(json, message);
  json += R"(,"type":)";
  append_json_string(json, type);
  json += R"(,"param":)";
  append_json_string_or_null(json, param);
  json += R"(,"code":)";
  append_json_string_or_null(json, code);
  json += "}}";
  return json;
}

void reject(const std::string& param, std::string message, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.param = param;
  error.code = std::move(code);
  throw RequestRejected(std::move(error));
}

ApiError unavailable(std::string message, std::string code) {
  ApiError error;
  error.status = 503;
  error.message = std::move(message);
  error.type = "server_error";
  error.code = std::move(code);
  error.retry_after = true;
  return error;
}

ApiError from_status(const Status& status) {
  ApiError error;
  error.message = status.message();
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      error.code = "invalid_value";
      return error;
    case StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "queue_full";
      error.retry_after = true;
      return error;
    case StatusCode::kUnavailable:
      return unavailable(status.message(), "not_ready");
    default:
      error.status = 500;
      error.type = "server_error";
      error.code = "internal_error";
      return error;
  }
}

}  // namespace fastfd::gateway
