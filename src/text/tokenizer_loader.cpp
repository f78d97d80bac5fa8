#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/byte_level.h"
#include "text/special_tokens.h"
#include "text/tokenizer_impl.h"

namespace fastfd {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Above any vocabulary in use; keeps a corrupt id from allocating the machine's memory.
constexpr TokenId kMaxTokenId = 16'000'000;

TokenId parse_id(const json& value, std::string_view token) {
  const auto id = value.get<std::int64_t>();
  if (id < 0 || id > kMaxTokenId) {
    throw TextError(
        fmt::format("token '{}' has id {}, which is not in 0..{}", token, id, kMaxTokenId));
  }
  return static_cast<TokenId>(id);
}

/// `false`, null, 0 and "" count as absent.
bool is_set(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return false;
  }
  return it->is_string() ? !it->get_ref<const std::string&>().empty() : *it != false && *it != 0;
}

/// Post-processors only matter for what they put around a text.
void add_post_processor(const json& processor, std::vector<TokenId>& prefix,
                        std::vector<TokenId>& suffix) {
  if (processor.is_null()) {
    return;
  }
  const auto type = processor.at("type").get<std::string>();
  if (type == "ByteLevel") {
    return;
  }
  if (type == "Sequence") {
    for (const auto& child : processor.at("processors")) {
      add_post_processor(child, prefix, suffix);
    }
    return;
  }
  if (type != "TemplateProcessing") {
    throw TextError(
        fmt::format("post-processor '{}' is not supported; supported are ByteLevel, "
                    "TemplateProcessing and Sequence",
                    type));
  }
  bool after_text = false;
  for (const auto& part : processor.at("single")) {
    if (part.contains("Sequence")) {
      after_text = true;
      continue;
    }
    const auto name = part.at("SpecialToken").at("id").get<std::string>();
    const auto& ids = processor.at("special_tokens").at(name).at("ids");
    for (const auto& id : ids) {
      (after_text ? suffix : prefix).push_back(parse_id(id, name));
    }
  }
}

void check_decoder(const json& decoder) {
  if (decoder.is_object()) {
    const auto type = decoder.at("type").get<std::string>();
    if (type == "ByteLevel") {
      return;
    }
    if (type == "Sequence" && decoder.at("decoders").size() == 1) {
      check_decoder(decoder.at("decoders").at(0));
      return;
    }
    throw TextError(fmt::format("decoder '{}' is not supported; supported is ByteLevel", type));
  }
  throw TextError("tokenizer.json names no decoder; supported is ByteLevel");
}

}  // namespace

/// Builds a tokenizer from parsed files.
class TokenizerLoader {
 public:
  TokenizerLoader(const json& tokenizer, const ordered_json& config)
      : tokenizer_(tokenizer), config_(config) {}

  Tokenizer load() {
    check_decoder(tokenizer_.value("decoder", json()));
    text::BpeModel model = load_model();
    // An aggregate that can't be moved: made in place.
    // NOLINTNEXTLINE(modernize-make-unique)
    auto impl = std::unique_ptr<Tokenizer::Impl>(new Tokenizer::Impl{
        .normalizer = text::Normalizer(tokenizer_.value("normalizer", json())),
        .pre_tokenizer = text::PreTokenizer(tokenizer_.value("pre_tokenizer", json())),
        .model = std::move(model),
        .raw_added = {},
        .normalized_added = {},
        .added_ids = {},
        .bytes = {},
        .texts = {},
        .prefix = {},
        .suffix = {},
        .special_tokens = text::special_tokens_of(config_),
        .workspaces = {}});
    load_added_tokens(*impl);
    add_post_processor(tokenizer_.value("post_processor", json()), impl->prefix, impl->suffix);
    lay_out_texts(*impl);
    return Tokenizer(std::move(impl));
  }

 private:
  void set_text(TokenId id, const std::string& content, bool special) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= texts_.size()) {
      texts_.resize(index + 1);
      special_.resize(index + 1, false);
    }
    texts_[index] = text::bytes_of_byte_level(content).value_or(content);
    special_[index] = special;
  }

  text::BpeModel load_model() {
    const json& model = tokenizer_.at("model");
    const std::string type = model.value("type", std::string("BPE"));
    if (type != "BPE") {
      throw TextError(fmt::format("tokenizer model '{}' is not supported; supported is BPE", type));
    }
    for (const char* option :
         {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
      if (is_set(model, option)) {
        throw TextError(
            fmt::format("BPE option '{}' is not supported; only plain byte-level BPE is", option));
      }
    }
    text::TokenMap vocab;
    std::unordered_map<std::string_view, TokenId> ids;  // by the token as it is written
    for (auto it = model.at("vocab").begin(); it != model.at("vocab").end(); ++it) {
      const TokenId id = parse_id(it.value(), it.key());
      set_text(id, it.key(), false);
      ids.emplace(it.key(), id);
      if (auto bytes = text::bytes_of_byte_level(it.key())) {
        vocab.emplace(std::move(*bytes), id);
      }
    }
    text::BpeModel::Options options;
    options.ignore_merges = model.value("ignore_merges", false);
    options.fuse_unk = is_set(model, "fuse_unk");
    if (is_set(model, "unk_token")) {
      const auto unk = ids.find(model.at("unk_token").get_ref<const std::string&>());
      if (unk == ids.end()) {
        throw TextError("the BPE model's unk_token is not in its vocabulary");
      }
      options.unk_id = unk->second;
    }
    return {std::move(vocab), load_merges(model.at("merges"), ids), options};
  }

  static std::vector<text::Merge> load_merges(
      const json& merges, const std::unordered_map<std::string_view, TokenId>& ids) {
    std::vector<text::Merge> result;
    result.reserve(merges.size());
    std::string joined;
    const auto id_of = [&](std::string_view token) {
      const auto it = ids.find(token);
      if (it == ids.end()) {
        throw TextError(fmt::format("merge {} needs token '{}', which is not in the vocabulary",
                                    result.size(), token));
      }
      return it->second;
    };
    for (const auto& merge : merges) {
      std::string_view left;
      std::string_view right;
      if (merge.is_string()) {
        const std::string_view line = merge.get_ref<const std::string&>();
        if (line.starts_with("#version")) {
          continue;
        }
        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos ||
            line.find(' ', space + 1) != std::string_view::npos) {
          throw TextError(
              fmt::format("merge {} is '{}'; it must be two tokens with one space "
                          "between them",
                          result.size(), line));
        }
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        throw TextError(fmt::format("merge {} is neither a string nor a pair", result.size()));
      }
      joined.assign(left).append(right);
      result.push_back({id_of(left), id_of(right), id_of(joined)});
    }
    return result;
  }

  void load_added_tokens(Tokenizer::Impl& impl) {
    for (const auto& entry : tokenizer_.value("added_tokens", json::array())) {
      add_token(impl, entry, parse_id(entry.at("id"), entry.at("content").get<std::string>()));
    }
    // Older exports keep some added tokens in tokenizer_config.json only.
    const auto decoder = config_.find("added_tokens_decoder");
    if (decoder == config_.end() || !decoder->is_object()) {
      return;
    }
    for (const auto& [key, entry] : decoder->items()) {
      if (!impl.added_ids.contains(entry.at("content").get<std::string>())) {
        add_token(impl, json(entry), parse_id(json::parse(key), key));
      }
    }
  }

  void add_token(Tokenizer::Impl& impl, const json& entry, TokenId id) {
    text::AddedToken token;
    token.id = id;
    token.content = entry.at("content").get<std::string>();
    token.special = entry.value("special", false);
    token.normalized = entry.value("normalized", !token.special);
    token.lstrip = entry.value("lstrip", false);
    token.rstrip = entry.value("rstrip", false);
    token.single_word = entry.value("single_word", false);
    set_text(id, token.content, token.special);
    impl.added_ids.emplace(token.content, id);
    if (token.normalized) {
      std::string buffer;
      std::string spare;
      text::RegexScratch scratch;
      const std::string pattern(impl.normalizer.apply(token.content, buffer, spare, scratch));
      impl.normalized_added.add(token, pattern);
    } else {
      impl.raw_added.add(token, token.content);
    }
  }

  void lay_out_texts(Tokenizer::Impl& impl) const {
    impl.texts.resize(texts_.size());
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      impl.texts[i] = {impl.bytes.size(), static_cast<std::uint32_t>(texts_[i].size()),
                       special_[i]};
      impl.bytes += texts_[i];
    }
  }

  const json& tokenizer_;
  const ordered_json& config_;
  std::vector<std::string> texts_;  // bytes by id
  std::vector<bool> special_;
};

namespace {

template <typename Json>
Json parse_named(std::string_view text, std::string_view name) {
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw TextError(fmt::format("{} is not valid JSON: {}", name, error.what()));
  }
}

Tokenizer load_named(std::string_view tokenizer_json, std::string_view config_json,
                     std::string_view name, std::string_view config_name) {
  const auto tokenizer = parse_named<json>(tokenizer_json, name);
  const auto config = config_json.empty() ? ordered_json::object()
                                          : parse_named<ordered_json>(config_json, config_name);
  try {
    return TokenizerLoader(tokenizer, config).load();
  } catch (const nlohmann::json::exception& error) {
    throw TextError(fmt::format("{} cannot be used: {}", name, error.what()));
  } catch (const TextError& error) {
    throw TextError(fmt::format("{} cannot be used: {}", name, error.what()));
  }
}

}  // namespace

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw TextError(
        path.string() +
        " is missing; take it from the checkpoint (a folder that has only shapes runs in "
        "`fastfd bench offline`)");
  }
  const auto config_path = folder / "tokenizer_config.json";
  const std::string config =
      std::filesystem::exists(config_path) ? text::read_text_file(config_path) : std::string();
  return load_named(text::read_text_file(path), config, path.string(), config_path.string());
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json,
                               std::string_view tokenizer_config_json) {
  return load_named(tokenizer_json, tokenizer_config_json, "tokenizer.json",
                    "tokenizer_config.json");
}

}  // namespace fastfd
