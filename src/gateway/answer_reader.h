#pragma once

#include <memory>
#include <optional>

#include "fastfd/gateway/text_service.h"
#include "gateway/reasoning_splitter.h"

namespace fastfd::gateway {

/// From the tokens of one answer to what a client sees of it: text, and apart from it what the
/// model thinks. One answer, one thread at a time.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;

  /// Appends to `out` what is certain by now. True once a stop string is complete: everything
  /// before it is in `out` then, and the reader takes no more tokens. `check_stops`: as
  /// TextStream::push.
  virtual bool push(TokenId token, bool check_stops, ReasoningSplitter::Piece& out) = 0;

  /// The answer has ended otherwise: appends what was held back.
  virtual void finish(ReasoningSplitter::Piece& out) = 0;
};

/// How an answer says what is reasoning.
struct AnswerForm {
  AnswerStart start = AnswerStart::kContent;  ///< with tags
  std::optional<ChannelTokens> channels{};    ///< by channels instead
};

/// `text` must outlive the reader; `options.prompt` need not. `options.shows_reasoning_tags` is
/// the form's to say.
std::unique_ptr<AnswerReader> make_answer_reader(const TextService& text,
                                                 const TextStreamOptions& options,
                                                 const AnswerForm& form);

}  // namespace fastfd::gateway
