#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "fastfd/text/error.h"

namespace fastfd::text {
namespace {

// Up to here a scan of all pairs beats keeping a heap.
constexpr std::size_t kShortWord = 32;
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

BpeModel::BpeModel(TokenMap vocab, const std::vector<Merge>& merges, const Options& options)
    : vocab_(std::move(vocab)), options_(options) {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto it = vocab_.find(std::string(1, static_cast<char>(byte)));
    byte_ids_[byte] = it == vocab_.end() ? kNoToken : it->second;
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

void BpeModel::split_bytes(std::string_view word, std::vector<TokenId>& ids) const {
  ids.clear();
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (options_.unk_id != kNoToken &&
               !(options_.fuse_unk && !ids.empty() && ids.back() == options_.unk_id)) {
      ids.push_back(options_.unk_id);
    }
  }
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch,
                           std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    if (const auto it = vocab_.find(word); it != vocab_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  split_bytes(word, scratch.ids);
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
