#pragma once

#include <stdexcept>
#include <string>

#include "fastfd/text/chat_template.h"

namespace fastfd::jinja {

/// What went wrong, before the place is known; the interpreter turns it into a ChatTemplateError
/// with the line it stands on.
class Failure : public std::runtime_error {
 public:
  Failure(ChatTemplateError::Kind kind, const std::string& message)
      : std::runtime_error(message), kind_(kind) {}
  ChatTemplateError::Kind kind() const { return kind_; }

 private:
  ChatTemplateError::Kind kind_;
};

[[noreturn]] inline void fail(const std::string& message) {
  throw Failure(ChatTemplateError::Kind::kRuntime, message);
}

[[noreturn]] inline void fail_limit(const std::string& message) {
  throw Failure(ChatTemplateError::Kind::kLimit, message);
}

}  // namespace fastfd::jinja
