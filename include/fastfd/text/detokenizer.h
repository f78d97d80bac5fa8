#pragma once

#include <memory>
#include <string>

#include "fastfd/core/ids.h"
#include "fastfd/text/tokenizer.h"

namespace fastfd {

/// Text of a token stream, as the tokens arrive. A piece never ends inside a UTF-8 character: its
/// bytes wait for the tokens that complete it. The pieces of all push() and the flush() together
/// are what Tokenizer::decode gives for the whole sequence. One stream, one thread at a time.
class IncrementalDetokenizer {
 public:
  /// `tokenizer` must outlive the detokenizer.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  /// The text that `token` completes; often empty for byte fragments of emoji and rare scripts.
  /// Bytes that can never become a character are U+FFFD.
  std::string push(TokenId token);

  /// The same, appended to `out`.
  void push(TokenId token, std::string& out);

  /// End of the sequence: an incomplete character becomes U+FFFD. The detokenizer is as new.
  std::string flush();

  /// Whether bytes of an incomplete character are waiting.
  bool has_pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastfd
