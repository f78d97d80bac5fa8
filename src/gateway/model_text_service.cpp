#include "fastfd/gateway/model_text_service.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "fastfd/text/chat_template.h"
#include "fastfd/text/detokenizer.h"
#include "fastfd/text/stop_matcher.h"
#include "fastfd/text/tokenizer.h"
#include "gateway/reasoning_splitter.h"

namespace fastfd::gateway {
namespace {

using nlohmann::ordered_json;

/// The tokens of "<think>" and "</think>" that the detokenizer would skip, as special ones.
struct HiddenTags {
  TokenId open = kNoToken;
  TokenId close = kNoToken;
};

class ModelTextStream final : public TextStream {
 public:
  ModelTextStream(const Tokenizer& tokenizer, const TextStreamOptions& options, HiddenTags shown)
      : detokenizer_(tokenizer, /*skip_special_tokens=*/true), shown_(shown) {
    detokenizer_.continue_from(options.prompt);
    if (!options.stop_strings.empty()) {
      stops_.emplace(options.stop_strings);
    }
  }

  bool push(TokenId token, bool check_stops, std::string& out) override {
    std::string piece;
    std::string& text = !stops_ || !check_stops ? out : piece;
    if (token != kNoToken && (token == shown_.open || token == shown_.close)) {
      text += token == shown_.open ? kReasoningOpen : kReasoningClose;
    } else {
      detokenizer_.push(token, text);
    }
    if (!stops_ || !check_stops) {
      return false;
    }
    StopStringMatcher::Output output = stops_->push(piece);
    out += output.text;
    return output.stop.has_value();
  }

  void finish(std::string& out) override {
    const std::string rest = detokenizer_.flush();
    if (!stops_) {
      out += rest;
      return;
    }
    out += stops_->push(rest).text;
    out += stops_->flush();
  }

 private:
  IncrementalDetokenizer detokenizer_;
  HiddenTags shown_;
  std::optional<StopStringMatcher> stops_;
};

class ModelTextService final : public TextService {
 public:
  explicit ModelTextService(const std::filesystem::path& model_dir)
      : tokenizer_(Tokenizer::from_folder(model_dir)),
        chat_template_(ChatTemplate::from_folder(
            model_dir, ChatTemplate::Options{tokenizer_.special_tokens(), {}, {}})),
        open_tag_(tokenizer_.token_id(kReasoningOpen)),
        close_tag_(tokenizer_.token_id(kReasoningClose)) {}

  std::size_t vocab_size() const override { return tokenizer_.vocab_size(); }

  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const override {
    try {
      return tokenizer_.encode(text, /*parse_special=*/true, add_special_tokens);
    } catch (const TextError& error) {
      throw std::invalid_argument(error.what());
    }
  }

  std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens) const override {
    return tokenizer_.decode(tokens, skip_special_tokens);
  }

  std::string token_bytes(TokenId token) const override {
    return std::string(tokenizer_.token_to_bytes(token));
  }

  std::string render_chat(const ordered_json& messages,
                          const ChatRenderOptions& options) const override {
    if (chat_template_ == nullptr) {
      throw std::invalid_argument("this model has no chat template; use /v1/completions");
    }
    ordered_json variables =
        options.variables == nullptr ? ordered_json::object() : *options.variables;
    if (options.documents != nullptr) {
      variables["documents"] = *options.documents;
    }
    const ordered_json no_tools;
    const ordered_json& tools = options.tools == nullptr ? no_tools : *options.tools;
    const auto render = [&](const ordered_json& shown) {
      return options.continue_final_message
                 ? render_begun(shown, tools, variables)
                 : chat_template_->render(shown, tools, options.add_generation_prompt, variables);
    };
    try {
      return render(chat_template_->mentions(kThinkingField) ? with_thinking(messages) : messages);
    } catch (const ChatTemplateError& error) {
      const auto with_texts = arguments_as_texts(messages);
      if (error.kind() != ChatTemplateError::Kind::kRuntime || !with_texts) {
        throw std::invalid_argument(error.reason());
      }
      try {
        return render(*with_texts);
      } catch (const ChatTemplateError& second) {
        throw std::invalid_argument(second.reason());
      }
    }
  }

  bool takes_tools() const override {
    return chat_template_ != nullptr && chat_template_->mentions("tools");
  }

  bool has_reasoning_tags() const override {
    return (open_tag_ && close_tag_) ||
           (chat_template_ != nullptr && chat_template_->mentions(kReasoningClose));
  }

  std::optional<ChannelTokens> channel_tokens() const override {
    const auto id = [this](const char* name) {
      return tokenizer_.token_id(name).value_or(kNoToken);
    };
    const ChannelTokens tokens{.start = id("<|start|>"),
                               .channel = id("<|channel|>"),
                               .message = id("<|message|>"),
                               .end = id("<|end|>"),
                               .call = id("<|call|>"),
                               .done = id("<|return|>"),
                               .constrain = id("<|constrain|>")};
    const bool has_all = tokens.start != kNoToken && tokens.channel != kNoToken &&
                         tokens.message != kNoToken && tokens.end != kNoToken;
    return has_all ? std::optional(tokens) : std::nullopt;
  }

  bool takes_reasoning_effort() const override {
    return chat_template_ != nullptr && chat_template_->mentions("reasoning_effort");
  }

  std::unique_ptr<TextStream> new_stream(const TextStreamOptions& options) const override {
    HiddenTags shown;
    if (options.shows_reasoning_tags) {
      shown.open = hidden(open_tag_);
      shown.close = hidden(close_tag_);
    }
    return std::make_unique<ModelTextStream>(tokenizer_, options, shown);
  }

 private:
  TokenId hidden(const std::optional<TokenId>& tag) const {
    return tag && tokenizer_.is_special(*tag) ? *tag : kNoToken;
  }

  /// Harmony's template calls the reasoning of earlier answers so.
  static constexpr std::string_view kThinkingField = "message.thinking";
  static ordered_json with_thinking(ordered_json messages) {
    for (auto& message : messages) {
      if (const auto reasoning = message.find("reasoning_content"); reasoning != message.end()) {
        message["thinking"] = *reasoning;
      }
    }
    return messages;
  }

  /// Most templates take the arguments of earlier tool calls as objects; some, DeepSeek-V3's among
  /// them, can only print text. nullopt if there are none.
  static std::optional<ordered_json> arguments_as_texts(const ordered_json& messages) {
    ordered_json changed = messages;
    bool any = false;
    for (auto& message : changed) {
      const auto calls = message.find("tool_calls");
      for (std::size_t i = 0; calls != message.end() && i < calls->size(); ++i) {
        auto& arguments = (*calls)[i]["function"]["arguments"];
        arguments = arguments.dump();
        any = true;
      }
    }
    return any ? std::optional(std::move(changed)) : std::nullopt;
  }

  /// What `transformers` does for continue_final_message: a mark behind the last message shows
  /// where the prompt ends; what the template writes after it goes.
  std::string render_begun(ordered_json messages, const ordered_json& tools,
                           const ordered_json& variables) const {
    constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
    constexpr std::string_view kTrimmedMark = kMark.substr(0, kMark.size() - 1);
    auto& content = messages.back()["content"].get_ref<std::string&>();
    content += kMark;
    std::string text = chat_template_->render(messages, tools, false, variables);
    const std::size_t end = text.rfind(kTrimmedMark);
    if (end == std::string::npos) {
      throw std::invalid_argument(
          "continue_final_message: the template leaves the end of the final message out, so that "
          "it can't be continued");
    }
    const bool keeps_space = std::string_view(text).substr(end).starts_with(kMark);
    text.resize(end);
    if (!keeps_space) {  // the template trims messages: so would it have done with this one
      text.resize(text.find_last_not_of(" \t\r\n\v\f") + 1);
    }
    return text;
  }

  Tokenizer tokenizer_;
  std::unique_ptr<const ChatTemplate> chat_template_;
  std::optional<TokenId> open_tag_;
  std::optional<TokenId> close_tag_;
};

}  // namespace

std::shared_ptr<const TextService> load_text_service(const std::filesystem::path& model_dir) {
  return std::make_shared<const ModelTextService>(model_dir);
}

}  // namespace fastfd::gateway
