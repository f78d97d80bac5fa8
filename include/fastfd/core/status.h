#pragma once

#include <optional>
#include <string>
#include <utility>

namespace fastfd {

/// What went wrong, for the callers that must decide by it. Messages are for people.
enum class StatusCode : unsigned char {
  kOk,
  kInvalidArgument,    ///< the caller's fault; retrying the same call cannot help
  kNotFound,           ///< the thing named does not exist
  kResourceExhausted,  ///< a bounded queue or pool is full; retry later
  kUnavailable,        ///< a peer or a service is not there (yet, or any more)
  kAborted,            ///< the epoch was abandoned while the call was in flight
  kDeadlineExceeded,   ///< a bounded wait ran out
  kInternal,           ///< a broken invariant: report it
};

/// Name of a code as it appears in logs: "unavailable".
const char* to_string(StatusCode code);

/// Outcome of an operation on the data path, where exceptions are not used. Making an OK status
/// allocates nothing. A value type: as thread-safe as an int.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// "unavailable: FFN server 1 closed its stream"
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fastfd
