#pragma once

/// Which pages of one attention server hold which full blocks of tokens, so that a later prompt
/// with the same start need not compute them (hash chaining as in vLLM's automatic prefix caching).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::scheduler {

/// Names the tokens of a block and of all blocks before it, under a salt. 128 bits, keyed with
/// random bits of this process, so that nobody can aim at a collision.
struct BlockKey {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

/// Index and eviction order only: the ledger owns the pages. A scheduler serves one model and one
/// KV type, so neither needs to be in the key. Not thread-safe.
class PrefixCache {
 public:
  PrefixCache(std::uint32_t num_pages, std::uint32_t block_size);

  std::uint32_t block_size() const { return block_size_; }
  BlockKey root_key(const std::string& salt) const;
  /// Key of the block of exactly block_size `tokens` that follows `parent`'s.
  BlockKey child_key(const BlockKey& parent, std::span<const TokenId> tokens) const;

  std::optional<PageId> find(const BlockKey& key) const;
  /// False if the block is known already, in another page: `page` stays out of the index.
  bool insert(const BlockKey& key, PageId page);
  bool contains_page(PageId page) const { return entries_[page].indexed; }

  /// An indexed page that nobody holds waits here for a hit or for eviction.
  void add_idle(PageId page);
  void remove_idle(PageId page);
  bool is_idle(PageId page) const { return entries_[page].idle; }
  std::uint32_t num_idle() const { return num_idle_; }
  /// Forgets the block that has been idle longest and returns its page. Requires num_idle() > 0.
  PageId evict();

 private:
  /// Doubly linked through the pages themselves; the last entry is the list's head.
  struct Entry {
    BlockKey key;
    PageId prev = 0;
    PageId next = 0;
    bool indexed = false;
    bool idle = false;
  };

  static constexpr PageId kNoPage = ~PageId{0};
  /// Where `key` is in the table, or the empty place where it would be.
  std::size_t locate(const BlockKey& key) const;
  void erase(const BlockKey& key);

  std::uint32_t block_size_;
  PageId head_;
  std::uint32_t num_idle_ = 0;
  std::vector<Entry> entries_;  // [num_pages + 1]
  /// Open addressing with linear probing, at most half full: a plan looks up one block or more per
  /// admission and server, nearly always a miss, which costs one read here.
  std::vector<PageId> table_;
};

}  // namespace fastfd::scheduler
