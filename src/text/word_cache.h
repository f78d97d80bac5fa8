#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::text {

/// Direct-mapped cache of words and their tokens: fixed memory, no allocation after the first use,
/// a new word replaces whatever shared its slot. One per encoding thread.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 38;
  static constexpr std::size_t kMaxTokens = 6;
  static constexpr std::size_t kNumSlots = std::size_t{1} << 15;

  static bool fits(std::string_view word) { return word.size() <= kMaxWordBytes; }

  /// Appends the tokens of `word` if it is here. `word` must fit.
  bool append(std::string_view word, std::vector<TokenId>& out) {
    const Slot& slot = slots_[slot_of(word)];
    if (slot.num_bytes != word.size() ||
        std::memcmp(slot.bytes.data(), word.data(), word.size()) != 0) {
      return false;
    }
    out.insert(out.end(), slot.tokens.begin(), slot.tokens.begin() + slot.num_tokens);
    return true;
  }

  void insert(std::string_view word, const TokenId* tokens, std::size_t num_tokens) {
    if (num_tokens > kMaxTokens) {
      return;
    }
    Slot& slot = slots_[slot_of(word)];
    std::memcpy(slot.bytes.data(), word.data(), word.size());
    std::memcpy(slot.tokens.data(), tokens, num_tokens * sizeof(TokenId));
    slot.num_bytes = static_cast<std::uint8_t>(word.size());
    slot.num_tokens = static_cast<std::uint8_t>(num_tokens);
  }

 private:
  struct alignas(64) Slot {
    std::array<TokenId, kMaxTokens> tokens{};
    std::uint8_t num_bytes = 0;  ///< 0: empty; words never are
    std::uint8_t num_tokens = 0;
    std::array<char, kMaxWordBytes> bytes{};
  };
  static_assert(sizeof(Slot) == 64);

  static std::size_t slot_of(std::string_view word) {
    std::uint64_t hash = word.size();
    const char* data = word.data();
    std::size_t left = word.size();
    for (; left >= 8; data += 8, left -= 8) {
      std::uint64_t chunk = 0;
      std::memcpy(&chunk, data, 8);
      hash = mix(hash ^ chunk);
    }
    std::uint64_t tail = 0;
    std::memcpy(&tail, data, left);
    return mix(hash ^ tail) >> (64 - 15);
  }

  static std::uint64_t mix(std::uint64_t value) {
    value *= 0x9E3779B97F4A7C15ULL;
    return value ^ (value >> 29);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kNumSlots);
};

}  // namespace fastfd::text
