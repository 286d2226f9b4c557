#include "swap/pager/pager.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

namespace spillway::swap {

Pager::Pager(DeviceMemory& device, HostSlab& host, Timeline& out, Timeline& in, int64_t small_bytes, DiskTier* disk)
    : device_(device),
      small_bytes_(small_bytes),
      out_(out),
      in_(in),
      host_(host, out, in, disk),
      table_(device, host_),
      transfer_(table_, device, host_, out, in, *this),
      evictor_(table_, transfer_, device, small_bytes),
      replayer_(table_, transfer_, evictor_, device, *this, *this),
      loader_(table_, transfer_, evictor_, replayer_),
      prefetcher_(table_, transfer_, evictor_, device, small_bytes),
      windows_(table_, transfer_, evictor_, replayer_, loader_, device, host_) {}

// --- pages ----------------------------------------------------------------------------------------------------------

Page* Pager::add(Block* block, int64_t bytes, std::unique_ptr<PageOwner> owner, UserId user) {
  std::lock_guard lock(table_.mutex());
  auto page = table_.make_page(bytes, block->category, std::move(owner), user);
  return table_.add(std::move(page), block, *this);
}

Page* Pager::add_absent(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner, UserId user) {
  std::unique_ptr<Page> page;
  {
    std::lock_guard lock(table_.mutex());
    page = table_.make_page(bytes, category, std::move(owner), user);
    transfer_.make_host_room(bytes, page->use);
  }
  page->host = host_.make(bytes, page->use);  // may wait for the disk
  std::lock_guard lock(table_.mutex());
  return table_.add(std::move(page), nullptr, *this);
}

void Pager::recategorize(Page& page, Category category) noexcept {
  if (device_.is_orphan()) return;
  std::lock_guard lock(table_.mutex());
  table_.recategorize(page, category);
}

// --- leases ---------------------------------------------------------------------------------------------------------

void Pager::lease(std::span<const PageUse> uses, UserId user) {
  if (device_.is_orphan())
    throw std::logic_error(
        "[pager] this process was forked from one that pages tensors, and has none of its copy lanes; use the tensors "
        "in the parent, or fork while no Session is open");
  PagerLock lock(table_.mutex());
  replayer_.announce(lock, uses);
  table_.begin_leases(uses, user);
  try {
    // All absent pages start together where there is room; then each is waited for.
    for (const PageUse& use : uses)
      if (use.page->may_page_in() && evictor_.fits(DeviceMemory::charge_of(use.page->bytes)))
        table_.stats().demand_page_ins += transfer_.try_page_in(*use.page);
    for (const PageUse& use : uses) loader_.make_resident(lock, *use.page);
    for (const PageUse& use : uses)
      if (use.write) transfer_.make_dirty(lock, *use.page);
  } catch (...) {
    table_.end_leases(uses);
    throw;
  }
}

void Pager::unlease(std::span<const PageUse> uses) noexcept {
  if (device_.is_orphan()) return;
  std::lock_guard lock(table_.mutex());
  for (const PageUse& use : uses)
    if (use.next_use != kNextUseKept) use.page->use.next_use = use.next_use;
  table_.end_leases(uses);
}

// --- ends -----------------------------------------------------------------------------------------------------------

void Pager::remove_user(UserId user) noexcept {
  table_.remove_user(user);
  PagerLock lock(table_.mutex());
  std::unordered_set<PageId> stuck;  // pages whose readers cannot be replayed now, so they stay pages
  const auto stays = [&](const Page& page) {
    const bool here = page.on_device() || page.is(PageState::paging_in);
    return here && page.user == user && page.leases == 0 && !stuck.contains(page.id);
  };
  for (;;) {
    const auto found = std::find_if(table_.pages().begin(), table_.pages().end(),
                                    [&](const auto& entry) { return stays(*entry.second); });
    if (found == table_.pages().end()) return;
    Page& page = *found->second;
    const PageHold hold(table_, page);
    if (!evict_or_unregister(lock, page)) stuck.insert(page.id);
  }
}

/// Does one round. The caller holds a lease. Returns false when the page can be neither evicted nor unregistered.
bool Pager::evict_or_unregister(PagerLock& lock, Page& page) noexcept {
  const UserId user = page.user;
  try {
    if (page.is(PageState::paging_in) && !page.copy.done())
      transfer_.wait(lock, page.copy);
    else if (page.is(PageState::paging_in))
      transfer_.finish_page_in(lock, page);
    else
      evictor_.evict(lock, page);
    return true;
  } catch (...) {  // the copy failed, or the host is full; after a failed page-in the page is absent anyway
  }
  try {
    if (page.on_device()) replayer_.replay_readers(lock, page.id);
  } catch (...) {
    return false;
  }
  if (page.on_device() && page.user == user && page.leases == 1 && page.replay_refs == 0) table_.unregister(page);
  return true;
}

void Pager::evict_all() {
  PagerLock lock(table_.mutex());
  evictor_.evict_all(lock);
}

void Pager::unregister_resident(Page& page) {
  PagerLock lock(table_.mutex());
  const PageHold hold(table_, page);
  std::exception_ptr error;
  do {
    try {
      replayer_.replay_readers(lock, page.id);  // readers cannot read a storage that is no page
    } catch (...) {
      error = std::current_exception();
    }
    if (!error) error = bring_home(lock, page);
  } while (!error && page.replay_refs > 0);  // another thread may have discarded a reader meanwhile
  if (!error && page.on_device()) table_.unregister(page);
  if (error) std::rethrow_exception(error);
}

void Pager::unregister_resident() {
  PagerLock lock(table_.mutex());
  std::vector<Page*> all;
  for (auto& [id, page] : table_.pages()) {
    all.push_back(page.get());
    ++page->leases;  // keeps the record while the lock is given up, and the bytes where they are
  }
  std::exception_ptr error;
  for (Page* page : all)
    if (auto failed = bring_home(lock, *page); failed && !error) error = failed;
  for (Page* page : all) {
    // A replay that failed will be tried again, and has to read this page.
    if (page->on_device() && page->replay_refs == 0) table_.unregister(*page);
    table_.end_lease(*page);
  }
  while (const Ticket* copy = table_.pending_free()) {
    transfer_.wait(lock, *copy);
    table_.free_completed();
  }
  if (error) std::rethrow_exception(error);
}

/// Brings the page's bytes to the device and waits until no copy uses them. Returns the error when they cannot come.
/// Called under a lease.
std::exception_ptr Pager::bring_home(PagerLock& lock, Page& page) {
  try {
    loader_.make_resident(lock, page);
    while (page.is(PageState::paging_out)) {
      transfer_.wait(lock, page.copy);
      transfer_.poll_page_out(page);
    }
  } catch (...) {  // a page-out that failed leaves the bytes where they are
    if (!page.on_device()) return std::current_exception();
  }
  return nullptr;
}

void Pager::reclaim(int64_t bytes) {
  PagerLock lock(table_.mutex());
  evictor_.make_room(lock, bytes);
}

bool Pager::free_physical_memory(int64_t bytes) {
  PagerLock lock(table_.mutex());
  return evictor_.free_physical_memory(lock, bytes);
}

void Pager::on_block_released(Block* block) noexcept {
  std::lock_guard lock(table_.mutex());
  if (block->keeper)  // else it was unregistered while this thread waited for the lock
    table_.destroy(*static_cast<Page*>(block->page));
  else
    device_.free(block);
}

void Pager::on_absent_owner_destroyed(Page* page) noexcept {
  if (device_.is_orphan()) return;
  std::lock_guard lock(table_.mutex());
  table_.destroy(*page);
}

// --- figures --------------------------------------------------------------------------------------------------------

PagerStats Pager::stats() const {
  std::lock_guard lock(table_.mutex());
  PagerStats stats = table_.stats();
  stats.exposed_seconds += out_.totals().stalled_seconds + in_.totals().stalled_seconds;
  return stats;
}

}  // namespace spillway::swap
