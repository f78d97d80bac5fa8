#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::gateway {

/// What a request may ask of the chat template. The JSON values outlive the call.
struct ChatRenderOptions {
  bool add_generation_prompt = true;
  /// The last message is the beginning of the answer: its end-of-turn marker is left out.
  bool continue_final_message = false;
  const nlohmann::ordered_json* tools = nullptr;      ///< array of function schemas
  const nlohmann::ordered_json* documents = nullptr;  ///< array of objects
  const nlohmann::ordered_json* variables = nullptr;  ///< object: further variables
};

struct TextStreamOptions {
  std::vector<std::string> stop_strings;  ///< none may be empty
  /// What the sequence continues: decides whether its first token's space is kept.
  std::span<const TokenId> prompt;
  /// "<think>" and "</think>" are written even if the vocabulary marks them as special.
  bool shows_reasoning_tags = false;
};

/// The special tokens around the messages of a model that answers in OpenAI's harmony format.
struct ChannelTokens {
  TokenId start = kNoToken;      ///< "<|start|>", before a message's role
  TokenId channel = kNoToken;    ///< "<|channel|>", before the channel's name
  TokenId message = kNoToken;    ///< "<|message|>", before its text
  TokenId end = kNoToken;        ///< "<|end|>"; further messages may follow
  TokenId call = kNoToken;       ///< "<|call|>", the end of a tool call
  TokenId done = kNoToken;       ///< "<|return|>", the end of the answer
  TokenId constrain = kNoToken;  ///< "<|constrain|>", in a header before the kind of text
};

/// Turns the tokens of one sequence into text as they come. Not thread-safe; one a sequence.
class TextStream {
 public:
  virtual ~TextStream() = default;

  /// Appends to `out` what is certain by now: whole UTF-8 characters that can't be the beginning of
  /// a stop string. Special tokens are silent. Returns true once a stop string is complete: `out`
  /// then ends before it and the stream takes no more tokens. `check_stops` false lets text pass
  /// unchecked (tokens before `min_tokens`).
  virtual bool push(TokenId token, bool check_stops, std::string& out) = 0;

  /// The sequence ended without a stop string: appends what was held back. Bytes that never became
  /// a character are written as U+FFFD.
  virtual void finish(std::string& out) = 0;
};

/// The model's text side as the gateway needs it. Const functions may be called from any thread at
/// the same time. Ids that the tokenizer does not know (padding of the model's vocabulary) are
/// legal and have no text.
class TextService {
 public:
  virtual ~TextService() = default;

  /// Largest token id that encode() can give + 1.
  virtual std::size_t vocab_size() const = 0;

  /// `add_special_tokens` adds what the tokenizer's post-processor adds (a BOS token, or nothing).
  /// Throws std::invalid_argument if the text can't be tokenized.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const = 0;

  /// Text of whole sequences; special tokens are written unless `skip_special_tokens`.
  virtual std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens) const = 0;

  /// The bytes a token stands for (perhaps a part of a character); a special token's name.
  virtual std::string token_bytes(TokenId token) const = 0;

  /// The prompt for `messages`: an array of objects with role and content (a string), and what else
  /// the request gave them. Throws std::invalid_argument with the template's own words if it
  /// refuses the messages, or if the model has no chat template.
  virtual std::string render_chat(const nlohmann::ordered_json& messages,
                                  const ChatRenderOptions& options) const = 0;

  /// Whether the chat template reads `tools`.
  virtual bool takes_tools() const = 0;

  /// Whether the model may think aloud between "<think>" and "</think>": they are tokens, or the
  /// chat template writes them.
  virtual bool has_reasoning_tags() const = 0;

  /// Of a model that writes its messages into channels; nullopt if the vocabulary lacks the first
  /// four of them.
  virtual std::optional<ChannelTokens> channel_tokens() const { return std::nullopt; }

  /// Whether the chat template reads the variable `reasoning_effort`.
  virtual bool takes_reasoning_effort() const { return false; }

  /// Copies what it needs of `options`.
  virtual std::unique_ptr<TextStream> new_stream(const TextStreamOptions& options) const = 0;
};

}  // namespace fastfd::gateway
