#pragma once

#include <memory>
#include <span>
#include <string>

#include "fastfd/core/ids.h"
#include "fastfd/text/tokenizer.h"

namespace fastfd {

/// Text of a token stream, as the tokens arrive. A piece never ends inside a UTF-8 character: its
/// bytes wait for the tokens that complete it. The pieces of all push() and the flush() together
/// are what Tokenizer::decode gives for the whole sequence, but for one case: a run of fallback
/// bytes ("<0xE2>") that is not UTF-8 as a whole has no text there at all, while here the
/// characters that were complete have left. One stream, one thread at a time.
class IncrementalDetokenizer {
 public:
  /// `tokenizer` must outlive the detokenizer.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  /// What is pushed from now on continues `context`, the prompt: the pieces are what the text of
  /// both together has more than that of the context. A space that only the beginning of a text
  /// lacks is kept, and a character that the context began is completed. Call before any push().
  void continue_from(std::span<const TokenId> context);

  /// The text that `token` completes; often empty for byte fragments of emoji and rare scripts.
  /// Bytes that can never become a character are U+FFFD.
  std::string push(TokenId token);

  /// The same, appended to `out`.
  void push(TokenId token, std::string& out);

  /// End of the sequence: an incomplete character becomes U+FFFD. The detokenizer is as new.
  std::string flush();

  /// Whether something is waiting: bytes of an incomplete character, or what goes at a text's end.
  bool has_pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastfd
