#pragma once

/// Who holds which KV page and which slot of one attention server (PROTOCOL 2). A page is in
/// exactly one of three places: free, held by one or more leases, or idle in the prefix cache.

#include <cstdint>
#include <span>
#include <vector>

#include "fastfd/core/ids.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/sequence.h"

namespace fastfd::scheduler {

class PageLedger {
 public:
  PageLedger(std::uint32_t num_pages, std::uint32_t page_size, std::uint32_t num_slots);

  /// Pages that can be given out now: free ones and idle cached ones.
  std::uint32_t num_available() const { return num_free() + cache_.num_idle(); }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_pages_.size()); }
  std::uint32_t num_cached_idle() const { return cache_.num_idle(); }
  std::uint32_t num_free_slots() const { return static_cast<std::uint32_t>(free_slots_.size()); }

  const PrefixCache& cache() const { return cache_; }

  /// Appends a fresh page to the lease, evicting the oldest idle block if none is free. Requires
  /// num_available() > 0.
  PageId append_page(Lease& lease);
  /// Appends a cached page, shared with everybody who holds it.
  void share_page(Lease& lease, PageId page);
  /// `page`, which somebody holds, stays where it is until release_copy_source or return_pages.
  void hold_copy_source(Lease& lease, PageId page);
  void release_copy_source(Lease& lease);
  /// Gives the lease a slot under a generation it never had. Requires num_free_slots() > 0.
  void take_slot(Lease& lease);

  /// The block in `page` is committed: later prompts may find it.
  void publish(const BlockKey& key, PageId page) { cache_.insert(key, page); }

  /// The steps that name the lease have committed: its pages go back, published ones to the cache.
  void return_pages(Lease& lease);
  void return_slot(SlotId slot) { free_slots_.push_back(slot); }

  /// Pages that only this lease holds: what return_pages() would make available.
  std::uint32_t num_sole_pages(const Lease& lease) const;

  /// Everything is free and the cache is empty; generations go on.
  void reset();

 private:
  void drop_holder(PageId page);

  std::uint32_t num_pages_;
  PrefixCache cache_;
  std::vector<PageId> free_pages_;
  std::vector<std::uint32_t> num_holders_;  // [num_pages]
  std::vector<SlotId> free_slots_;
  std::vector<Generation> generations_;  // [num_slots]
};

}  // namespace fastfd::scheduler
