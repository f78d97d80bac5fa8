#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fastfd::gateway {

inline constexpr std::string_view kReasoningOpen = "<think>";
inline constexpr std::string_view kReasoningClose = "</think>";

/// Where an answer begins.
enum class AnswerStart : std::uint8_t {
  kContent,    ///< all of it is content: tags mean nothing
  kUndecided,  ///< reasoning if "<think>" comes first
  kReasoning,  ///< the prompt has opened the tag, or the model never writes it
};

/// Splits an answer into what a model thinks, up to "</think>", and what it says, as the text
/// arrives. The tags themselves go; everything else stays as the model wrote it. Tags may be cut
/// anywhere: what could still become one is held back. One answer, one thread at a time.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(AnswerStart start);

  struct Piece {
    std::string reasoning;
    std::string content;
  };
  Piece push(std::string_view text);

  /// The answer has ended: what was held back.
  Piece finish();

 private:
  enum class State : std::uint8_t { kBeforeTag, kReasoning, kContent };

  void read_before_tag(Piece& piece);
  void read_reasoning(Piece& piece);

  State state_;
  bool is_reasoning_without_tag_;  ///< what stands for an opening tag that doesn't come
  std::string held_;
};

}  // namespace fastfd::gateway
