#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "fastfd/text/error.h"

namespace fastfd {

/// A template that cannot be parsed or rendered. what() is "chat template, line 12: ...".
class ChatTemplateError : public TextError {
 public:
  enum class Kind : std::uint8_t {
    kSyntax,   ///< the template is malformed, or uses what is not supported
    kRuntime,  ///< an operation failed on these messages: undefined values, wrong types
    kRaised,   ///< the template refused the messages by raise_exception()
    kLimit,    ///< a bound on steps, nesting or output was reached
  };

  ChatTemplateError(Kind kind, int line, const std::string& reason);

  Kind kind() const { return kind_; }
  int line() const { return line_; }                     ///< in the template, from 1
  const std::string& reason() const { return reason_; }  ///< without the place

 private:
  Kind kind_;
  int line_;
  std::string reason_;
};

/// Bounds that keep a hostile template or request from holding a thread or its memory.
struct ChatTemplateLimits {
  std::size_t max_output_bytes = std::size_t{64}
                                 << 20;  ///< of the text and of any string on the way
  std::uint64_t max_steps = 10'000'000;  ///< evaluated nodes and 32-byte units of copied data
  std::uint32_t max_depth = 400;         ///< nested expressions, blocks and macro calls
};

/// The chat template of a Hugging Face model, rendered as `transformers` does: Jinja with
/// trim_blocks, lstrip_blocks and loop controls in an immutable sandbox, `tojson` without HTML
/// escapes, `raise_exception`, `strftime_now`. An interpreter of that language's part that chat
/// templates use: no inheritance, includes or imports, no recursive loops, no markup escaping.
/// Integers have 64 bits.
///
/// Immutable once made; render() may be called from any number of threads.
class ChatTemplate {
 public:
  struct Options {
    /// "bos_token", "eos_token", ...: variables of the template.
    std::map<std::string, std::string> special_tokens;
    ChatTemplateLimits limits;
    /// What strftime_now formats, in local time. The system clock if empty.
    std::function<std::chrono::system_clock::time_point()> clock;
  };

  /// Parses a template. Throws ChatTemplateError (kSyntax).
  explicit ChatTemplate(std::string_view source);
  ChatTemplate(std::string_view source, Options options);

  /// Reads `chat_template.jinja` (with `additional_chat_templates/*.jinja`), else `chat_template`
  /// of tokenizer_config.json: a string, or a list of named templates. nullptr when the model has
  /// none (a base model). Throws TextError or ChatTemplateError.
  static std::unique_ptr<ChatTemplate> from_folder(const std::filesystem::path& folder);
  static std::unique_ptr<ChatTemplate> from_folder(const std::filesystem::path& folder,
                                                   Options options);

  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// The prompt for `messages` (an array of objects with `role`, `content`, ...). `tools` is an
  /// array of tool schemas or null; with tools, a template named "tool_use" is preferred.
  /// `variables` (an object) are further names, such as `enable_thinking`; they win over the
  /// others.
  ///
  /// Templates print objects in the order of their keys: parse requests with ordered_json, not
  /// json, to keep the client's order. Throws ChatTemplateError.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool add_generation_prompt, const nlohmann::ordered_json& variables) const;

  /// Whether the source of any of its templates has `text` in it: "tools", "</think>".
  bool mentions(std::string_view text) const;

  /// Without tools and further variables.
  std::string render(const nlohmann::ordered_json& messages, bool add_generation_prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace fastfd
