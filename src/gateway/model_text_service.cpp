#include "fastfd/gateway/model_text_service.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "fastfd/text/chat_template.h"
#include "fastfd/text/detokenizer.h"
#include "fastfd/text/stop_matcher.h"
#include "fastfd/text/tokenizer.h"

namespace fastfd::gateway {
namespace {

class ModelTextStream final : public TextStream {
 public:
  ModelTextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings)
      : detokenizer_(tokenizer, /*skip_special_tokens=*/true) {
    if (!stop_strings.empty()) {
      stops_.emplace(stop_strings);
    }
  }

  bool push(TokenId token, bool check_stops, std::string& out) override {
    if (!stops_ || !check_stops) {
      detokenizer_.push(token, out);
      return false;
    }
    StopStringMatcher::Output output = stops_->push(detokenizer_.push(token));
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
  std::optional<StopStringMatcher> stops_;
};

class ModelTextService final : public TextService {
 public:
  explicit ModelTextService(const std::filesystem::path& model_dir)
      : tokenizer_(Tokenizer::from_folder(model_dir)),
        chat_template_(ChatTemplate::from_folder(
            model_dir, ChatTemplate::Options{tokenizer_.special_tokens(), {}, {}})) {}

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

  std::string render_chat(const std::vector<ChatMessage>& messages,
                          const ChatRenderOptions& options) const override {
    if (chat_template_ == nullptr) {
      throw std::invalid_argument("this model has no chat template; use /v1/completions");
    }
    auto list = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages) {
      list.push_back({{"role", message.role}, {"content", message.content}});
    }
    const auto variables = options.variables_json.empty()
                               ? nlohmann::ordered_json::object()
                               : nlohmann::ordered_json::parse(options.variables_json);
    std::string text;
    try {
      text = chat_template_->render(list, nullptr, options.add_generation_prompt, variables);
    } catch (const ChatTemplateError& error) {
      throw std::invalid_argument(error.reason());
    }
    if (options.continue_final_message) {
      cut_after_final_message(text, messages.back().content);
    }
    return text;
  }

  std::unique_ptr<TextStream> new_stream(
      const std::vector<std::string>& stop_strings) const override {
    return std::make_unique<ModelTextStream>(tokenizer_, stop_strings);
  }

 private:
  /// What `transformers` does for continue_final_message: everything after the last occurrence of
  /// the message goes.
  static void cut_after_final_message(std::string& text, const std::string& content) {
    const std::size_t at = text.rfind(content);
    if (at == std::string::npos) {
      throw std::invalid_argument(
          "continue_final_message: the template changes the final message, so that it can't be "
          "continued");
    }
    text.resize(at + content.size());
  }

  Tokenizer tokenizer_;
  std::unique_ptr<const ChatTemplate> chat_template_;
};

}  // namespace

std::shared_ptr<const TextService> load_text_service(const std::filesystem::path& model_dir) {
  return std::make_shared<const ModelTextService>(model_dir);
}

}  // namespace fastfd::gateway
