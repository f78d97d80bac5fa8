#include "http/fake_text.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fastfd/text/stop_matcher.h"
#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

std::string bytes_of(TokenId token) {
  if (token == kFakeEos) {
    return "<eos>";
  }
  if (token == kFakeBos) {
    return "<bos>";
  }
  return token >= 0 && token < 256 ? std::string(1, static_cast<char>(token)) : std::string();
}

/// Waits for whole characters; a byte that can't belong to one is U+FFFD.
class CharacterAssembler {
 public:
  void push(const std::string& bytes, std::string& out) {
    pending_ += bytes;
    while (!pending_.empty()) {
      const std::size_t length = sequence_length(static_cast<unsigned char>(pending_.front()));
      if (length > pending_.size()) {
        return;
      }
      const std::string character = pending_.substr(0, length);
      const bool valid = length > 0 && is_utf8(character);
      out += valid ? character : "\xEF\xBF\xBD";
      pending_.erase(0, valid ? length : 1);
    }
  }
  void finish(std::string& out) {
    if (!pending_.empty()) {
      out += "\xEF\xBF\xBD";
      pending_.clear();
    }
  }

 private:
  static std::size_t sequence_length(unsigned char lead) {
    if (lead < 0x80) {
      return 1;
    }
    if (lead < 0xC0) {
      return 0;
    }
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  }
  std::string pending_;
};

class FakeStream final : public TextStream {
 public:
  explicit FakeStream(const std::vector<std::string>& stops) : matcher_(stops) {}

  bool push(TokenId token, bool check_stops, std::string& out) override {
    std::string piece;
    if (token < 256) {
      characters_.push(bytes_of(token), piece);
    }
    if (!check_stops) {
      out += piece;
      return false;
    }
    const auto result = matcher_.push(piece);
    out += result.text;
    return result.stop.has_value();
  }

  void finish(std::string& out) override {
    std::string piece;
    characters_.finish(piece);
    out += matcher_.push(piece).text;
    out += matcher_.flush();
  }

 private:
  CharacterAssembler characters_;
  StopStringMatcher matcher_;
};

class FakeText final : public TextService {
 public:
  std::size_t vocab_size() const override { return 256; }

  std::vector<TokenId> encode(std::string_view text, bool /*add_special_tokens*/) const override {
    std::vector<TokenId> tokens;
    tokens.reserve(text.size());
    for (const char c : text) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return tokens;
  }

  std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens) const override {
    CharacterAssembler characters;
    std::string text;
    for (const TokenId token : tokens) {
      if (token < 256 || !skip_special_tokens) {
        characters.push(bytes_of(token), text);
      }
    }
    characters.finish(text);
    return text;
  }

  std::string token_bytes(TokenId token) const override { return bytes_of(token); }

  std::string render_chat(const nlohmann::ordered_json& messages,
                          const ChatRenderOptions& options) const override {
    std::string text;
    if (options.tools != nullptr) {
      text.append("tools: ").append(options.tools->dump()).append("\n");
    }
    for (const auto& message : messages) {
      const auto content = message.at("content").get<std::string>();
      if (content == "refuse me") {
        throw std::invalid_argument("this conversation is refused");
      }
      text += message.at("role").get<std::string>() + ": " + content;
      for (const char* key : {"reasoning_content", "tool_calls", "tool_call_id"}) {
        if (message.contains(key)) {
          text.append(" ").append(message.at(key).dump());
        }
      }
      text += &message == &messages.back() && options.continue_final_message ? "" : "\n";
    }
    text += options.add_generation_prompt ? "assistant: " : "";
    text += options.documents == nullptr ? "" : options.documents->dump();
    return text + (options.variables == nullptr ? "" : options.variables->dump());
  }

  bool takes_tools() const override { return true; }
  bool has_reasoning_tags() const override { return true; }
  bool takes_reasoning_effort() const override { return true; }
  std::optional<ChannelTokens> channel_tokens() const override {
    return ChannelTokens{.start = kFakeStart,
                         .channel = kFakeStart + 1,
                         .message = kFakeStart + 2,
                         .end = kFakeStart + 3,
                         .call = kFakeStart + 4,
                         .done = kFakeStart + 5,
                         .constrain = kFakeStart + 6};
  }

  std::unique_ptr<TextStream> new_stream(const TextStreamOptions& options) const override {
    return std::make_unique<FakeStream>(options.stop_strings);
  }
};

}  // namespace

std::shared_ptr<const TextService> make_fake_text() { return std::make_shared<FakeText>(); }

ServedModel make_fake_model(std::uint32_t max_model_len) {
  ServedModel model;
  model.name = kFakeModelName;
  model.max_model_len = max_model_len;
  model.vocab_size = kFakeVocabSize;
  model.sampling.do_sample = false;
  model.eos_token_ids = {kFakeEos};
  model.text = make_fake_text();
  return model;
}

}  // namespace fastfd::gateway
