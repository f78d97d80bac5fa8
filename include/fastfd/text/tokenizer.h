#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/text/error.h"

namespace fastfd {

/// BPE tokenizer of a Hugging Face model folder, byte-level or in the manner of SentencePiece;
/// gives the token ids that the `tokenizers` library gives. Reads `tokenizer.json` (and
/// `tokenizer_config.json` for the names of special tokens): BPE with merges in either form, byte
/// fallback and unknown tokens; added tokens; the normalizers NFC, NFD, NFKC, NFKD, Lowercase,
/// Prepend, Replace, Strip; the pre-tokenizers ByteLevel, Metaspace, Split, Digits, Punctuation,
/// Whitespace, WhitespaceSplit, CharDelimiterSplit; the post-processors ByteLevel,
/// TemplateProcessing, RobertaProcessing, BertProcessing; the decoders ByteLevel, ByteFallback,
/// Fuse, Metaspace, Replace, Strip. Anything else is refused with its name. As in vLLM,
/// `clean_up_tokenization_spaces` changes nothing.
///
/// Two limits follow from the Unicode tables used: characters assigned after Unicode 14 count as
/// unassigned in split patterns, and those assigned after Unicode 15 in normalisation.
///
/// Immutable once made; every const function may be called from any number of threads.
class Tokenizer {
 public:
  /// Loads `folder`/tokenizer.json and, if it is there, tokenizer_config.json. Throws TextError.
  static Tokenizer from_folder(const std::filesystem::path& folder);

  /// The same from the files' contents; `tokenizer_config_json` may be empty. Throws TextError.
  static Tokenizer from_json(std::string_view tokenizer_json,
                             std::string_view tokenizer_config_json = {});

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Tokens of `text`. Text that is not UTF-8 is read as Python's
  /// `bytes.decode("utf-8", errors="replace")` reads it: invalid bytes become U+FFFD.
  ///
  /// `parse_special` false: special tokens such as "<|im_end|>" in the text are ordinary
  /// characters, as befits text that a user typed. `add_special_tokens`: also what the model's
  /// post-processor puts around a text (a beginning-of-sequence token for some models); leave it
  /// false for rendered chat templates, which write those themselves.
  ///
  /// Throws TextError when a split pattern exceeds its limits on this text.
  std::vector<TokenId> encode(std::string_view text, bool parse_special = true,
                              bool add_special_tokens = false) const;

  /// Text of `tokens`; bytes that are not UTF-8 become U+FFFD. Ids outside of the vocabulary give
  /// nothing.
  std::string decode(std::span<const TokenId> tokens, bool skip_special_tokens = false) const;

  /// Bytes that a token stands for inside of a text; empty for ids outside of the vocabulary. Valid
  /// as long as the tokenizer.
  std::string_view token_to_bytes(TokenId token) const;

  /// Largest token id + 1. A model's `vocab_size` may be larger (padding), never smaller.
  std::size_t vocab_size() const;

  /// Whether `token` is an added token marked special; decode can skip those.
  bool is_special(TokenId token) const;

  /// Id of an added token, or of the vocabulary token with exactly these bytes; where the
  /// vocabulary is not byte-level, of the one that is written like this ("▁the").
  std::optional<TokenId> token_id(std::string_view content) const;

  /// From tokenizer_config.json; nullopt when the model has none.
  std::optional<TokenId> bos_token() const;
  std::optional<TokenId> eos_token() const;
  std::optional<TokenId> pad_token() const;

  /// "bos_token", "eos_token", ... and their text, for chat templates.
  const std::map<std::string, std::string>& special_tokens() const;

 private:
  struct Impl;
  friend class TokenizerLoader;
  friend class IncrementalDetokenizer;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd
