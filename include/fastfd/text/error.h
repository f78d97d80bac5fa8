#pragma once

#include <stdexcept>

namespace fastfd {

/// A tokenizer or template file that cannot be used, or input that cannot be processed. The message
/// names the cause and, where there is one, the remedy.
class TextError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fastfd
