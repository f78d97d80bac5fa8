#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "fastfd/core/model_files.h"
#include "text/byte_level.h"
#include "text/json_fields.h"
#include "text/post_processor.h"
#include "text/special_tokens.h"
#include "text/text_files.h"
#include "text/tokenizer_impl.h"

namespace fastfd {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Above any vocabulary in use; keeps a corrupt id from allocating the machine's memory.
constexpr TokenId kMaxTokenId = 16'000'000;

TokenId parse_id(const json& value, std::string_view token) {
  if (!value.is_number_integer()) {
    throw TextError(fmt::format("the id of token '{}' is {}, not a whole number", token,
                                text::shown_json(value)));
  }
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMaxTokenId;
  if (!fits) {
    throw TextError(fmt::format("token '{}' has id {}, which is not in 0..{}", token,
                                text::shown_json(value), kMaxTokenId));
  }
  return static_cast<TokenId>(value.get<std::uint64_t>());
}

/// `false`, null, 0 and "" count as absent.
bool is_set(const text::JsonFields& fields, const char* key) {
  const json* value = fields.find(key);
  if (value == nullptr) {
    return false;
  }
  return value->is_string() ? !value->get_ref<const std::string&>().empty()
                            : *value != false && *value != 0;
}

}  // namespace

/// Builds a tokenizer from parsed files.
class TokenizerLoader {
 public:
  TokenizerLoader(const json& tokenizer, const ordered_json& config)
      : tokenizer_(tokenizer, ""), config_(config) {}

  Tokenizer load() {
    if (tokenizer_.find("decoder") == nullptr) {
      throw TextError("decoder is missing; it must say how tokens become text, as ByteLevel does");
    }
    text::PreTokenizer pre_tokenizer = optional_part<text::PreTokenizer>("pre_tokenizer");
    text::BpeModel model = load_model(pre_tokenizer.is_byte_level());
    // An aggregate that can't be moved: made in place.
    // NOLINTNEXTLINE(modernize-make-unique)
    auto impl = std::unique_ptr<Tokenizer::Impl>(
        new Tokenizer::Impl{.normalizer = optional_part<text::Normalizer>("normalizer"),
                            .pre_tokenizer = std::move(pre_tokenizer),
                            .model = std::move(model),
                            .decoder = text::TokenDecoder(tokenizer_.child("decoder")),
                            .raw_added = {},
                            .normalized_added = {},
                            .added_ids = {},
                            .bytes = {},
                            .texts = {},
                            .first_texts = {},
                            .prefix = {},
                            .suffix = {},
                            .special_tokens = text::special_tokens_of(config_),
                            .workspaces = {}});
    load_added_tokens(*impl);
    lay_out_texts(*impl);
    add_around(*impl);
    return Tokenizer(std::move(impl));
  }

 private:
  template <typename Part>
  Part optional_part(const char* key) const {
    return tokenizer_.find(key) == nullptr ? Part() : Part(tokenizer_.child(key));
  }

  void set_content(TokenId id, const std::string& content, bool special) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= contents_.size()) {
      contents_.resize(index + 1);
      special_.resize(index + 1, false);
    }
    contents_[index] = content;
    special_[index] = special;
  }

  text::BpeModel load_model(bool is_byte_level) {
    const text::JsonFields model = tokenizer_.child("model");
    const std::string type = model.string_or("type", "BPE");
    if (type != "BPE") {
      throw TextError(fmt::format("tokenizer model '{}' is not supported; supported is BPE", type));
    }
    for (const char* option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      if (is_set(model, option)) {
        throw TextError(
            fmt::format("BPE option '{}' is not supported; remove it if it can be spared", option));
      }
    }
    text::TokenMap vocab;
    std::unordered_map<std::string_view, TokenId> ids;  // by the token as it is written
    const json& entries = model.object("vocab");
    for (auto it = entries.begin(); it != entries.end(); ++it) {  // not items(): it copies keys
      const TokenId id = parse_id(it.value(), it.key());
      set_content(id, it.key(), false);
      ids.emplace(it.key(), id);
      if (!is_byte_level) {
        vocab.emplace(it.key(), id);
      } else if (auto bytes = text::bytes_of_byte_level(it.key())) {
        vocab.emplace(std::move(*bytes), id);
      }
    }
    return {std::move(vocab), load_merges(model.array("merges"), ids),
            read_options(model, is_byte_level, ids)};
  }

  static text::BpeModel::Options read_options(
      const text::JsonFields& model, bool is_byte_level,
      const std::unordered_map<std::string_view, TokenId>& ids) {
    text::BpeModel::Options options;
    options.alphabet =
        is_byte_level ? text::BpeModel::Alphabet::kBytes : text::BpeModel::Alphabet::kCharacters;
    options.byte_fallback = model.boolean_or("byte_fallback", false);
    options.ignore_merges = model.boolean_or("ignore_merges", false);
    options.fuse_unk = model.boolean_or("fuse_unk", false);
    if (is_set(model, "unk_token")) {
      const auto unk = ids.find(model.string("unk_token"));
      if (unk == ids.end()) {
        throw TextError(fmt::format("model.unk_token is '{}', which is not in the vocabulary",
                                    model.string("unk_token")));
      }
      options.unk_id = unk->second;
    }
    return options;
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
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        throw TextError(fmt::format("merge {} is {}, neither a string nor a pair of them",
                                    result.size(), text::shown_json(merge)));
      }
      joined.assign(left).append(right);
      result.push_back({id_of(left), id_of(right), id_of(joined)});
    }
    return result;
  }

  void load_added_tokens(Tokenizer::Impl& impl) {
    if (tokenizer_.find("added_tokens") != nullptr) {
      for (std::size_t i = 0; i < tokenizer_.array("added_tokens").size(); ++i) {
        const text::JsonFields entry = tokenizer_.element("added_tokens", i);
        if (entry.find("id") == nullptr) {
          entry.fail("id", "a token id");
        }
        add_token(impl, entry, parse_id(*entry.find("id"), entry.string("content")));
      }
    }
    // Older exports keep some added tokens in tokenizer_config.json only.
    const auto decoder = config_.find("added_tokens_decoder");
    if (decoder == config_.end() || !decoder->is_object()) {
      return;
    }
    for (const auto& [key, value] : decoder->items()) {
      const json copy(value);
      const text::JsonFields entry(
          copy, fmt::format("tokenizer_config.json: added_tokens_decoder.{}", key));
      if (!impl.added_ids.contains(entry.string("content"))) {
        add_token(impl, entry, parse_id(json::parse(key, nullptr, false), key));
      }
    }
  }

  void add_token(Tokenizer::Impl& impl, const text::JsonFields& entry, TokenId id) {
    text::AddedToken token;
    token.id = id;
    token.content = entry.string("content");
    token.special = entry.boolean_or("special", false);
    token.normalized = entry.boolean_or("normalized", !token.special);
    token.lstrip = entry.boolean_or("lstrip", false);
    token.rstrip = entry.boolean_or("rstrip", false);
    token.single_word = entry.boolean_or("single_word", false);
    set_content(id, token.content, token.special);
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
    text::RegexScratch scratch;
    impl.texts.resize(contents_.size());
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      const auto text = impl.decoder.token_text(contents_[i], scratch);
      impl.texts[i] = {impl.bytes.size(), static_cast<std::uint32_t>(text.bytes.size()),
                       special_[i], text.is_byte};
      impl.bytes += text.bytes;
      if (auto first = impl.decoder.first_text(contents_[i], scratch)) {
        impl.first_texts.emplace(static_cast<TokenId>(i), std::move(*first));
      }
    }
  }

  void add_around(Tokenizer::Impl& impl) const {
    if (tokenizer_.find("post_processor") != nullptr) {
      auto around = text::read_post_processor(tokenizer_.child("post_processor"));
      impl.prefix = std::move(around.prefix);
      impl.suffix = std::move(around.suffix);
    }
    // The Llama classes of transformers make their post-processor of two switches.
    static constexpr std::string_view kLlamaClasses[] = {
        "LlamaTokenizer",         "LlamaTokenizerFast", "CodeLlamaTokenizer",
        "CodeLlamaTokenizerFast", "GemmaTokenizer",     "GemmaTokenizerFast"};
    const auto name = config_.find("tokenizer_class");
    if (name != config_.end() && name->is_string() &&
        std::find(std::begin(kLlamaClasses), std::end(kLlamaClasses),
                  name->get_ref<const std::string&>()) != std::end(kLlamaClasses)) {
      apply_switch(impl, "add_bos_token", "bos_token", impl.prefix);
      apply_switch(impl, "add_eos_token", "eos_token", impl.suffix);
    }
    for (const auto* ids : {&impl.prefix, &impl.suffix}) {
      for (const TokenId id : *ids) {
        if (impl.find(id) == nullptr) {
          throw TextError(
              fmt::format("post_processor adds token {}, which is not in the vocabulary", id));
        }
      }
    }
  }

  void apply_switch(const Tokenizer::Impl& impl, const char* key, const char* token_name,
                    std::vector<TokenId>& ids) const {
    const auto given = config_.find(key);
    if (given == config_.end() || !given->is_boolean()) {
      return;
    }
    ids.clear();
    const auto name = impl.special_tokens.find(token_name);
    if (*given == false || name == impl.special_tokens.end()) {
      return;
    }
    const auto id = std::find(contents_.begin(), contents_.end(), name->second);
    if (id == contents_.end()) {
      throw TextError(fmt::format("tokenizer_config.json: {} '{}' is not in the vocabulary",
                                  token_name, name->second));
    }
    ids.push_back(static_cast<TokenId>(id - contents_.begin()));
  }

  text::JsonFields tokenizer_;
  const ordered_json& config_;
  std::vector<std::string> contents_;  // as the vocabulary spells them, by id
  std::vector<bool> special_;
};

namespace {

Tokenizer load_named(std::string_view tokenizer_json, std::string_view config_json,
                     std::string_view name, std::string_view config_name) {
  const auto tokenizer = text::parse_json<json>(tokenizer_json, name);
  const auto config = config_json.empty()
                          ? ordered_json::object()
                          : text::parse_json<ordered_json>(config_json, config_name);
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
  if (!has_entry(path)) {
    throw TextError(
        path.string() +
        " is missing; take it from the checkpoint (a folder that has only shapes runs in "
        "`fastfd bench offline`)");
  }
  const auto config_path = folder / "tokenizer_config.json";
  const std::string config =
      has_entry(config_path) ? text::read_text_file(config_path) : std::string();
  return load_named(text::read_text_file(path), config, path.string(), config_path.string());
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json,
                               std::string_view tokenizer_config_json) {
  return load_named(tokenizer_json, tokenizer_config_json, "tokenizer.json",
                    "tokenizer_config.json");
}

}  // namespace fastfd
