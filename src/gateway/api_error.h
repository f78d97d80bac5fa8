#pragma once

#include <exception>
#include <string>

#include "fastfd/core/status.h"

namespace fastfd::gateway {

/// An answer that is an error, in OpenAI's terms.
struct ApiError {
  int status = 400;  ///< HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  ///< empty: null
  std::string code;   ///< empty: null
  bool retry_after = false;

  /// {"error":{"message":...,"type":...,"param":...,"code":...}}
  std::string to_json() const;
};

/// Thrown while a request is read; becomes the response.
class RequestRejected : public std::exception {
 public:
  explicit RequestRejected(ApiError error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

[[noreturn]] void reject(const std::string& param, std::string message,
                         std::string code = "invalid_value");

/// The cluster can't serve now; clients may retry.
ApiError unavailable(std::string message, std::string code);

/// A failed EngineClient::submit as the client sees it: 400, 429, 503 or 500.
ApiError from_status(const Status& status);

}  // namespace fastfd::gateway
