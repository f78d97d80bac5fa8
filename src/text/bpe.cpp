#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>

#include "fastfd/text/error.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

// Up to here a scan of all pairs beats keeping a heap.
constexpr std::size_t kShortWord = 32;
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

BpeModel::BpeModel(TokenMap vocab, const std::vector<Merge>& merges, const Options& options)
    : vocab_(std::move(vocab)), options_(options) {
  const auto id_of = [this](std::string_view token) {
    const auto it = vocab_.find(token);
    return it == vocab_.end() ? kNoToken : it->second;
  };
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = id_of({&c, 1});
    fallback_ids_[byte] = options.byte_fallback ? id_of(fmt::format("<0x{:02X}>", byte)) : kNoToken;
  }
  if (options.alphabet == Alphabet::kCharacters) {
    for (const auto& [token, id] : vocab_) {
      std::size_t pos = 0;
      const char32_t c = token.empty() ? 0 : next_code_point(token, pos);
      if (!token.empty() && pos == token.size()) {
        character_ids_.emplace(c, id);
      }
    }
  }
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2));
  pairs_.resize(capacity);
  pair_mask_ = capacity - 1;
  pair_shift_ = 64 - std::countr_zero(capacity);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    insert_pair(merges[rank], static_cast<std::uint32_t>(rank));
  }
}

void BpeModel::insert_pair(const Merge& merge, std::uint32_t rank) {
  auto& pair = const_cast<Pair&>(find_pair(merge.left, merge.right));
  pair = {pair_key(merge.left, merge.right), rank, merge.result};
}

namespace {

/// What becomes of symbols without a token. Like the `tokenizers` library, it holds one unk token
/// back until a symbol with a token of its own (bytes of a fallback don't count) or the end comes.
class UnknownSymbols {
 public:
  UnknownSymbols(const BpeModel::Options& options, std::vector<TokenId>& ids)
      : options_(options), ids_(ids) {}

  void add() {
    if (options_.unk_id == kNoToken) {
      return;
    }
    if (pending_ && !options_.fuse_unk) {
      ids_.push_back(options_.unk_id);
    }
    pending_ = true;
  }

  void flush() {
    if (pending_) {
      ids_.push_back(options_.unk_id);
      pending_ = false;
    }
  }

 private:
  const BpeModel::Options& options_;
  std::vector<TokenId>& ids_;
  bool pending_ = false;
};

}  // namespace

void BpeModel::split_bytes(std::string_view word, std::vector<TokenId>& ids) const {
  UnknownSymbols unknown(options_, ids);
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id != kNoToken) {
      unknown.flush();
      ids.push_back(id);
    } else {
      unknown.add();
    }
  }
  unknown.flush();
}

bool BpeModel::push_fallback(std::string_view character, std::vector<TokenId>& ids) const {
  const auto id_of = [this](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(character.begin(), character.end(),
                   [&](char c) { return id_of(c) != kNoToken; })) {
    return false;
  }
  std::transform(character.begin(), character.end(), std::back_inserter(ids), id_of);
  return true;
}

void BpeModel::split_characters(std::string_view word, std::vector<TokenId>& ids) const {
  UnknownSymbols unknown(options_, ids);
  for (std::size_t pos = 0; pos < word.size();) {
    const std::size_t begin = pos;
    const char32_t c = next_code_point(word, pos);
    TokenId id = kNoToken;
    if (c < 0x80) {
      id = byte_ids_[c];
    } else if (const auto it = character_ids_.find(c); it != character_ids_.end()) {
      id = it->second;
    }
    if (id != kNoToken) {
      unknown.flush();
      ids.push_back(id);
    } else if (!push_fallback(word.substr(begin, pos - begin), ids)) {
      unknown.add();
    }
  }
  unknown.flush();
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch,
                           std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    if (const auto it = vocab_.find(word); it != vocab_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  scratch.ids.clear();
  if (options_.alphabet == Alphabet::kBytes) {
    split_bytes(word, scratch.ids);
  } else {
    split_characters(word, scratch.ids);
  }
  if (scratch.ids.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void BpeModel::merge_short(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<std::uint32_t>& ranks = scratch.ranks;  // ranks[i] is that of ids[i], ids[i + 1]
  ranks.assign(ids.size(), kNoRank);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    ranks[i] = find_pair(ids[i], ids[i + 1]).rank;
  }
  while (ids.size() > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.end());  // the leftmost of equals
    if (*best == kNoRank) {
      return;
    }
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    ids[i] = find_pair(ids[i], ids[i + 1]).result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks[i] = i + 1 < ids.size() ? find_pair(ids[i], ids[i + 1]).rank : kNoRank;
    if (i > 0) {
      ranks[i - 1] = find_pair(ids[i - 1], ids[i]).rank;
    }
  }
}

/// A linked list of symbols and a heap of (rank, position); entries whose pair has changed since
/// are recognised by their rank and skipped.
void BpeModel::merge_long(BpeScratch& scratch) const {
  if (scratch.ids.size() >= kNone) {
    throw TextError("a word of 4 GiB or more cannot be tokenised; split the text");
  }
  const auto count = static_cast<std::uint32_t>(scratch.ids.size());
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.resize(count);
  heap.clear();
  const auto entry_of = [&](std::uint32_t i) {
    const std::uint32_t rank = find_pair(symbols[i].id, symbols[symbols[i].next].id).rank;
    return (static_cast<std::uint64_t>(rank) << 32) | i;
  };
  const auto push = [&](std::uint32_t i) {
    const std::uint64_t entry = entry_of(i);
    if ((entry >> 32) != kNoRank) {
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {scratch.ids[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  }
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    if (const std::uint64_t entry = entry_of(i); (entry >> 32) != kNoRank) {
      heap.push_back(entry);
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t entry = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(entry);
    BpeScratch::Symbol& symbol = symbols[i];
    if (symbol.id == kNoToken || symbol.next == kNone) {
      continue;
    }
    const Pair& pair = find_pair(symbol.id, symbols[symbol.next].id);
    if (pair.rank != static_cast<std::uint32_t>(entry >> 32)) {
      continue;
    }
    BpeScratch::Symbol& consumed = symbols[symbol.next];
    symbol.id = pair.result;
    symbol.next = consumed.next;
    consumed.id = kNoToken;
    if (symbol.next != kNone) {
      symbols[symbol.next].previous = i;
      push(i);
    }
    if (symbol.previous != kNone) {
      push(symbol.previous);
    }
  }
  scratch.ids.clear();
  for (std::uint32_t i = 0; i != kNone; i = symbols[i].next) {
    scratch.ids.push_back(symbols[i].id);
  }
}

}  // namespace fastfd::text
