#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::text {

/// Token -> id; tokens of a byte-level vocabulary as raw bytes, others as they are written.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

struct Merge {
  TokenId left = kNoToken;
  TokenId right = kNoToken;
  TokenId result = kNoToken;
};

/// Buffers of one encoding thread.
struct BpeScratch {
  struct Symbol {
    TokenId id = kNoToken;
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
  };
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<std::uint64_t> heap;
};

/// Byte-pair encoding of one pre-tokenised word (Sennrich et al. 2016). The base alphabet is
/// GPT-2's bytes, or characters as SentencePiece has them, with bytes for those that have no token
/// (byte fallback). Immutable after construction.
class BpeModel {
 public:
  enum class Alphabet : std::uint8_t { kBytes, kCharacters };
  struct Options {
    Alphabet alphabet = Alphabet::kBytes;
    bool byte_fallback = false;  ///< characters without a token become tokens "<0x0A>" of bytes
    bool ignore_merges = false;  ///< a word that is a token needs no merges
    TokenId unk_id = kNoToken;   ///< for symbols without a token; without it they are dropped
    bool fuse_unk = false;       ///< neighbouring unknown symbols give one unk token
  };

  /// `merges` in order of rank; of equal pairs the last one counts.
  BpeModel(TokenMap vocab, const std::vector<Merge>& merges, const Options& options);

  /// Appends the tokens of `word`. O(n log n) in its bytes.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  const TokenMap& vocab() const { return vocab_; }

 private:
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

  struct Pair {
    std::uint64_t key = kEmptyKey;
    std::uint32_t rank = kNoRank;
    TokenId result = kNoToken;
  };
  static constexpr std::uint64_t kEmptyKey = ~std::uint64_t{0};

  static std::uint64_t pair_key(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }

  /// The merge of a pair; rank kNoRank when there is none. Linear probing in a table at most half
  /// full, hashed by the golden ratio.
  const Pair& find_pair(TokenId left, TokenId right) const {
    const std::uint64_t key = pair_key(left, right);
    std::size_t slot = (key * 0x9E3779B97F4A7C15ULL) >> pair_shift_;
    while (pairs_[slot].key != key && pairs_[slot].key != kEmptyKey) {
      slot = (slot + 1) & pair_mask_;
    }
    return pairs_[slot];
  }

  void insert_pair(const Merge& merge, std::uint32_t rank);
  void split_bytes(std::string_view word, std::vector<TokenId>& ids) const;
  void split_characters(std::string_view word, std::vector<TokenId>& ids) const;
  bool push_fallback(std::string_view character, std::vector<TokenId>& ids) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;

  TokenMap vocab_;
  Options options_;
  std::array<TokenId, 256> byte_ids_{};      ///< by byte; by ASCII character of kCharacters
  std::array<TokenId, 256> fallback_ids_{};  ///< "<0x00>" to "<0xFF>"
  std::unordered_map<char32_t, TokenId> character_ids_;
  std::vector<Pair> pairs_;
  std::size_t pair_mask_ = 0;
  int pair_shift_ = 0;
};

}  // namespace fastfd::text
