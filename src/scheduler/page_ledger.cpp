#include "scheduler/page_ledger.h"

#include "fastfd/core/check.h"

namespace fastfd::scheduler {

PageLedger::PageLedger(std::uint32_t num_pages, std::uint32_t page_size, std::uint32_t num_slots)
    : num_pages_(num_pages), cache_(num_pages, page_size), generations_(num_slots) {
  reset();
}

void PageLedger::reset() {
  cache_ = PrefixCache(num_pages_, cache_.block_size());
  num_holders_.assign(num_pages_, 0);
  free_pages_.clear();
  free_slots_.clear();
  // Popped from the back: low numbers first, which keeps the hot part of the pool small.
  for (PageId page = num_pages_; page > 0; --page) {
    free_pages_.push_back(page - 1);
  }
  for (auto slot = static_cast<SlotId>(generations_.size()); slot > 0; --slot) {
    free_slots_.push_back(slot - 1);
  }
}

PageId PageLedger::append_page(Lease& lease) {
  PageId page = 0;
  if (free_pages_.empty()) {
    page = cache_.evict();
  } else {
    page = free_pages_.back();
    free_pages_.pop_back();
  }
  check(num_holders_[page] == 0, "a page is given out while somebody holds it");
  num_holders_[page] = 1;
  lease.pages.push_back(page);
  return page;
}

void PageLedger::share_page(Lease& lease, PageId page) {
  if (num_holders_[page]++ == 0) {
    cache_.remove_idle(page);
  }
  lease.pages.push_back(page);
}

void PageLedger::take_slot(Lease& lease) {
  check(!free_slots_.empty(), "no slot is free");
  lease.slot = free_slots_.back();
  free_slots_.pop_back();
  lease.generation = ++generations_[lease.slot];
}

void PageLedger::hold_copy_source(Lease& lease, PageId page) {
  check(num_holders_[page] > 0, "a page is copied that nobody holds");
  ++num_holders_[page];
  lease.copy_source = page;
}

void PageLedger::release_copy_source(Lease& lease) {
  if (lease.copy_source) {
    drop_holder(*lease.copy_source);
    lease.copy_source.reset();
  }
}

void PageLedger::drop_holder(PageId page) {
  check(num_holders_[page] > 0, "a page is returned twice");
  if (--num_holders_[page] > 0) {
    return;
  }
  if (cache_.contains_page(page)) {
    cache_.add_idle(page);
  } else {
    free_pages_.push_back(page);
  }
}

void PageLedger::return_pages(Lease& lease) {
  release_copy_source(lease);
  // Deepest block first, so that a chain is evicted from its end and its start stays reachable.
  for (std::size_t i = lease.pages.size(); i-- > 0;) {
    drop_holder(lease.pages[i]);
  }
  lease.pages.clear();
}

std::uint32_t PageLedger::num_sole_pages(const Lease& lease) const {
  std::uint32_t count = 0;
  for (const PageId page : lease.pages) {
    count += num_holders_[page] == 1 ? 1 : 0;
  }
  return count;
}

}  // namespace fastfd::scheduler
