#include "scheduler/prefix_cache.h"

#include <bit>
#include <random>

#include "fastfd/core/check.h"

namespace fastfd::scheduler {
namespace {

/// Two independent streams of a 64-bit mixer (finaliser of SplitMix64, Steele et al. 2014).
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = (state ^ value) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

BlockKey extend(BlockKey key, std::uint64_t value) {
  return {mix(key.hi, value), mix(key.lo, ~value)};
}

/// The same for all servers of the process: keys are made once and looked up on each.
const BlockKey& process_secret() {
  static const BlockKey secret = [] {
    std::random_device device;
    const auto word = [&device] {
      return static_cast<std::uint64_t>(device()) << 32 | static_cast<std::uint64_t>(device());
    };
    return BlockKey{word(), word()};
  }();
  return secret;
}

}  // namespace

PrefixCache::PrefixCache(std::uint32_t num_pages, std::uint32_t block_size)
    : block_size_(block_size),
      head_(num_pages),
      entries_(num_pages + 1),
      table_(std::bit_ceil(std::size_t{2} * num_pages), kNoPage) {
  entries_[head_].prev = head_;
  entries_[head_].next = head_;
}

BlockKey PrefixCache::root_key(const std::string& salt) const {
  BlockKey key = extend(process_secret(), salt.size());
  for (const char c : salt) {
    key = extend(key, static_cast<unsigned char>(c));
  }
  return key;
}

BlockKey PrefixCache::child_key(const BlockKey& parent, std::span<const TokenId> tokens) const {
  BlockKey key = parent;
  for (const TokenId token : tokens) {
    key = extend(key, static_cast<std::uint32_t>(token));
  }
  return key;
}

std::optional<PageId> PrefixCache::find(const BlockKey& key) const {
  const PageId page = table_[locate(key)];
  return page == kNoPage ? std::nullopt : std::optional(page);
}

std::size_t PrefixCache::locate(const BlockKey& key) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = key.lo & mask;
  while (table_[at] != kNoPage && entries_[table_[at]].key != key) {
    at = (at + 1) & mask;
  }
  return at;
}

/// Moves later entries of the same run back, so that no search stops early at the hole.
void PrefixCache::erase(const BlockKey& key) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = locate(key);
  for (std::size_t at = (hole + 1) & mask; table_[at] != kNoPage; at = (at + 1) & mask) {
    const std::size_t home = entries_[table_[at]].key.lo & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = kNoPage;
}

bool PrefixCache::insert(const BlockKey& key, PageId page) {
  check(!entries_[page].indexed, "a page holds one block only");
  const std::size_t at = locate(key);
  if (table_[at] != kNoPage) {
    return false;
  }
  table_[at] = page;
  entries_[page].key = key;
  entries_[page].indexed = true;
  return true;
}

void PrefixCache::add_idle(PageId page) {
  check(entries_[page].indexed && !entries_[page].idle, "only indexed pages become idle, once");
  const PageId last = entries_[head_].prev;
  entries_[page].prev = last;
  entries_[page].next = head_;
  entries_[page].idle = true;
  entries_[last].next = page;
  entries_[head_].prev = page;
  ++num_idle_;
}

void PrefixCache::remove_idle(PageId page) {
  check(entries_[page].idle, "the page is not idle");
  entries_[entries_[page].prev].next = entries_[page].next;
  entries_[entries_[page].next].prev = entries_[page].prev;
  entries_[page].idle = false;
  --num_idle_;
}

PageId PrefixCache::evict() {
  check(num_idle_ > 0, "nothing to evict");
  const PageId page = entries_[head_].next;
  remove_idle(page);
  erase(entries_[page].key);
  entries_[page].indexed = false;
  return page;
}

}  // namespace fastfd::scheduler
